"""What a handler may ask for, as types: `session: Session` is this request's transaction, `engine: TheEngine` what
starts and stops the engine. `console.app` provides each under the parameter name given here.

| type | parameter | what it is |
| --- | --- | --- |
| Session | session | this request's transaction: committed when the handler returns, rolled back when it raises |
| Config | config | the console's settings |
| Folder | home | the state folder |
| TheEngine | engine | what starts and stops the engine, at once or when its requests have finished |
| TheHub | hub | what sends to open pages |
| TheFollower | follower | what watches the engine; `.view` is the engine as last seen |
| TheThrottle | throttle | what slows password guessing down |
| TheNewKeys | new_keys | API keys that were just created and are still shown |
| TheCatalogue | catalogue | which launches there are, from their folders |
| TheLogStore | log_store | the logs' indexes |
| TheImporting | importing | what lies on a drive, and the queue that imports from it |
| Profiles | profiles | profiles and their revisions |
| TheMachines | machines | the machine that the engine runs on, or this one |
| TheInspector | inspector | what can be said about a document before it is saved |
| TheBackupJobs | backup_jobs | what makes, checks and restores backups, one at a time |
| TheActivator | activator | what makes a revision the active one, one at a time |
"""

from __future__ import annotations

from typing import Any

from litestar import Request
from litestar.datastructures import State
from litestar.di import NamedDependency
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.home import Home
from appliance.launches.catalogue import Catalogue
from console.access.new_keys import NewKeys
from console.access.sessions import SignedIn
from console.access.throttle import Throttle
from console.backups.jobs import BackupJobs
from console.engine_control.operations import EngineOperations
from console.hardware.machines import Machines
from console.live.follower import Follower
from console.live.hub import Hub
from console.logs.store import LogStore
from console.models.importing import Importing
from console.profiles.activator import Activator
from console.profiles.inspection import Inspector
from console.profiles.store import ProfileStore
from console.settings import ConsoleConfig

Session = NamedDependency[AsyncSession]
Config = NamedDependency[ConsoleConfig]
Folder = NamedDependency[Home]
TheEngine = NamedDependency[EngineOperations]
TheHub = NamedDependency[Hub]
TheFollower = NamedDependency[Follower]
TheThrottle = NamedDependency[Throttle]
TheNewKeys = NamedDependency[NewKeys]
TheCatalogue = NamedDependency[Catalogue]
TheLogStore = NamedDependency[LogStore]
TheImporting = NamedDependency[Importing]
Profiles = NamedDependency[ProfileStore]
TheMachines = NamedDependency[Machines]
TheInspector = NamedDependency[Inspector]
TheActivator = NamedDependency[Activator]
TheBackupJobs = NamedDependency[BackupJobs]

PageRequest = Request[SignedIn, Any, State]
"""`request.user` is who is signed in."""
