"""Does to a failed launch what its fix says, and starts it again: a fix is true if the launch then serves."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from appliance.home import Home
from appliance.launches.folder import LaunchFolder
from appliance.profile import document as documents
from appliance.protocol import Fix, State
from tests.bench.truth_page import Visitor
from tests.running import INGOT, Appliance, environment, wait_for

COMMAND_S = 60.0
OVER = (State.READY, State.FAILED, State.HUNG, State.STOPPED)
# What a benchmark does not do to the machine that it runs on.
NOT_RUN = ("sudo ", "apt-get ", "systemctl ", "python -m pip ", "-m pip install", "HF_HUB_OFFLINE=0 ")


def serves_with(
    fix: Fix,
    document: Mapping[str, Any],
    running: Appliance,
    visitor: Visitor,
    variables: Mapping[str, str],
    limit_s: float,
) -> bool | None:
    """Whether the launch of `document` comes up within `limit_s` with the fix's patch applied, or else its command run.
    None where there is neither, or where the command would change more than the appliance."""
    changed = dict(document)
    before = visitor.launch_asked_for()
    if fix.patch:
        changed = documents.apply_patch(changed, fix.patch) | {"name": f"{document['name']}-mended"}
        if visitor.save(changed).status_code != 303:
            return False
    elif not fix.command or any(word in fix.command for word in NOT_RUN):
        return None
    elif not _run(fix.command, running.home, variables):
        return False
    # A command may have started it itself.
    if visitor.launch_asked_for() == before and visitor.activate(changed["name"]).status_code != 303:
        return False
    folder = LaunchFolder(Home.at(running.home).launches / visitor.launch_asked_for())

    def state() -> State | None:
        record = folder.stored_record()
        return record.state if record is not None and record.state in OVER else None

    try:
        return wait_for("the mended launch", state, limit_s, every_s=0.1) is State.READY
    except TimeoutError:
        return False


def _run(command: str, home: Path, variables: Mapping[str, str]) -> bool:
    """In a shell, in which `ingot` is what the appliance was started with."""
    script = f'ingot() {{ {shlex.join(INGOT)} "$@"; }}\n{command}'
    own = environment(home) | dict(variables)
    done = subprocess.run(["sh", "-c", script], env=own, capture_output=True, text=True, timeout=COMMAND_S)
    if done.returncode:
        print(f"       {command}: {done.stdout[-300:]}{done.stderr[-300:]}", flush=True)
    return done.returncode == 0
