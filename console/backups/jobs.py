"""The Backups page's background job: one at a time, in a thread, with its progress."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from jinja2 import Environment

from appliance.home import Home
from appliance.launches.catalogue import Catalogue
from console.authors import done_by
from console.backups import create, restore
from console.backups.after_restore import AfterRestore
from console.backups.create import Report
from console.backups.errors import BackupError
from console.backups.folder import Backup, BackupFolder
from console.db.failures import DATABASE_ERRORS, explain
from console.db.launch_index import LaunchIndex
from console.db.sessions import Database
from console.engine_control.base import EngineControlError
from console.engine_control.operations import EngineOperations, When
from console.formats import gib
from console.live.follower import Follower
from console.live.hub import Hub
from console.profiles.activator import Activator
from console.profiles.errors import ProfileRefusal

log = logging.getLogger(__name__)

TELL_EVERY_S = 0.25
Kind = Literal["backup", "check", "restore"]
RUNNING: dict[Kind, tuple[str, str]] = {
    "backup": ("{name} is being created.", "backup-running"),
    "check": ("{name} is being checked.", "backup-check-running"),
    "restore": ("{name} is being restored.", "restore-running"),
}
"""What a second job is refused with: the sentence, and the conflict's code."""


@dataclass
class Job:
    """`done` of `total` bytes. It is over once `ended` is set; then `outcome` says what was done, or `failure` why it
    failed. `cancelled`: it ends when it next reports progress."""

    kind: Kind
    name: str
    began: float = field(default_factory=time.time)
    done: int = 0
    total: int = 0
    ended: float | None = None
    outcome: str = ""
    failure: BackupError | None = None
    cancelled: bool = False

    @property
    def share(self) -> float | None:
        return min(1.0, self.done / self.total) if self.total else None


class BackupJobs:
    """Creates, checks and restores backups for the page."""

    def __init__(
        self,
        home: Home,
        database: Database,
        engine: EngineOperations,
        activator: Activator,
        follower: Follower,
        hub: Hub,
        templates: Environment,
    ) -> None:
        self.folder = BackupFolder(home)
        self.job: Job | None = None
        self._home = home
        self._database = database
        self._engine = engine
        self._activator = activator
        self._follower = follower
        self._hub = hub
        self._shown = {name: templates.get_template(f"backups/{name}.html") for name in ("job", "list")}
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    async def backups(self) -> list[Backup]:
        return await asyncio.to_thread(self.folder.backups)

    def make(self, *, with_launches: bool) -> Job:
        def work(report: Report) -> str:
            made = create.create(self._home, self.folder.create(), with_launches=with_launches, report=report)
            return f"Created {made.path.name} ({gib(made.size)})."

        return self._begin(Job("backup", ""), lambda report: asyncio.to_thread(work, report))

    def check(self, name: str) -> Job:
        path = self.folder.find(name)

        def work(report: Report) -> str:
            checked = restore.check(self._home, path, report)
            migrates = " A restore will upgrade its database." if checked.migrates else ""
            return f"{name} is intact and can be restored.{migrates}"

        return self._begin(Job("check", name), lambda report: asyncio.to_thread(work, report))

    def restore(self, name: str, when: When, who: str) -> Job:
        """The engine restarts at the end: at once, or when its requests have finished."""
        return self._begin(Job("restore", name), lambda report: self._restore(name, report, when, who))

    async def settled(self, job: Job, within_s: float) -> bool:
        """Whether the job ends within this time. It is then no longer shown."""
        if self._task is not None and self.job is job:
            await asyncio.wait({self._task}, timeout=within_s)
        if job.ended is None:
            return False
        if self.job is job:
            self.job = None
            self._publish()
        return True

    def dismiss(self) -> None:
        """Stop showing how the last job ended."""
        if self.job is not None and self.job.ended is not None:
            self.job = None
            self._publish()

    def cancel(self) -> Job | None:
        """End the running job when it next reports progress, and return it. A committed restore no longer reports."""
        if self.job is None or self.job.ended is not None:
            return None
        self.job.cancelled = True
        self._publish()
        return self.job

    async def close(self) -> None:
        """End the running job when it next reports progress. A committed restore no longer reports: it ends in moments,
        or the next start finishes it."""
        self._closing = True
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=1.0)

    def _begin(self, job: Job, work: Callable[[Report], Awaitable[str]]) -> Job:
        if self.job is not None and self.job.ended is None:
            running, code = RUNNING[self.job.kind]
            what = running.format(name=self.job.name or "A backup")
            raise BackupError(code, what, "Wait until that is done, then try again.", status=409)
        self.job = job
        self._task = asyncio.create_task(self._run(job, work))
        return job

    async def _run(self, job: Job, work: Callable[[Report], Awaitable[str]]) -> None:
        loop = asyncio.get_running_loop()
        told = 0.0

        def heard(done: int, total: int) -> None:
            job.done, job.total = done, total
            self._publish()

        def report(done: int, total: int) -> None:
            nonlocal told
            if self._closing:
                raise BackupError(
                    "stopping", "The console is stopping.", "Try again once it has restarted.", status=503
                )
            if job.cancelled:
                raise BackupError(
                    "cancelled", "Cancelled. Nothing was changed.", "Start it again at any time.", status=409
                )
            if time.monotonic() - told >= TELL_EVERY_S:
                told = time.monotonic()
                loop.call_soon_threadsafe(heard, done, total)

        self._publish()
        try:
            job.outcome = await work(report)
        except BackupError as error:
            job.failure = error
        except ProfileRefusal as error:
            job.failure = BackupError(error.code, error.message, error.remedy, status=409)
        except DATABASE_ERRORS as error:
            failure = explain(error, self._home.database)
            if failure is None:
                log.error("A backup job failed.", exc_info=error)
                what = f"The database reported an error: {error}."
                job.failure = BackupError("database", what, "The console's output has the details.", status=500)
            else:
                job.failure = BackupError("database", failure.message, failure.remedy, status=failure.status)
        finally:
            job.ended = time.time()
            if not (job.outcome or job.failure):  # a bug: its traceback is in the console's output
                remedy = "The console's output has the traceback. Please report it."
                job.failure = BackupError("failed", "An unexpected error ended the job.", remedy, status=500)
            self._publish()
            with suppress(OSError):
                self._hub.send("backups-list", self._shown["list"].render(backups=await self.backups(), live=True))

    async def _restore(self, name: str, report: Report, when: When, who: str) -> str:
        path = self.folder.find(name)

        def work() -> restore.Restored:
            with path.open("rb") as raw:
                return restore.restore(
                    self._home, raw, name, path.stat().st_size, report=report, judge=_somebody_can_sign_in
                )

        with self._activator.alone(name, "restore-running"):
            restored = await asyncio.to_thread(work)
            # Index all launch folders again: the current index belongs to the previous database.
            await LaunchIndex(self._database, Catalogue(self._home)).refresh()
        said = (
            f"Restored {name}. Active profile: {restored.active or 'none'}. The previous state is in {restored.kept}."
        )
        if restored.revoked:
            said += f" API keys that were revoked since stay revoked: {', '.join(restored.revoked)}."
        try:
            await self._engine.restart(when, why=done_by("Restarted", who) + " after a restore")
        except EngineControlError as error:
            said += f" The engine was not restarted: {error}"
        finally:
            self._follower.wake()
        return said

    def _publish(self) -> None:
        self._hub.publish("backups-job", self._shown["job"].render(job=self.job, live=True))


def _somebody_can_sign_in(after: AfterRestore) -> None:
    if not after.contents.accounts:
        raise BackupError(
            "no-account",
            "This backup has no account, so nobody could sign in.",
            "Restore it with `ingot backup restore`. The next start will print a set-up link.",
        )
