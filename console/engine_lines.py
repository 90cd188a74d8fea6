"""What the terminal of `ingot up` says about the engine: one line for each change worth knowing."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from rich.console import Console as Terminal
from rich.markup import escape
from rich.status import Status

from appliance.protocol import LaunchRecord, State
from console import formats
from console.app import Console
from console.live.view import EngineView

COMING_UP = frozenset({State.PREFLIGHT, State.STARTING})
LOOKS_EVERY_S = 0.1


class Change(NamedTuple):
    """What the engine came to, with which launch (empty if its front door does not say), and how that reads of which
    profile."""

    state: State
    launch: str
    profile: str
    text: str


async def tell(terminal: Terminal, console: Console) -> None:
    """Until cancelled. While the engine starts, a terminal also shows one line that changes; a file does not."""
    if console.control.kind == "none":
        return
    status = terminal.status("") if terminal.is_terminal else None
    last: Change | None = None
    try:
        while True:
            view = console.follower.view
            change = news(last, view)
            if change is not None:
                if last is not None or change.state not in COMING_UP:
                    terminal.print(_line(change), soft_wrap=True, markup=False)
                last = change
            if status:
                _show(status, view)
            await asyncio.sleep(LOOKS_EVERY_S)
    finally:
        if status:
            status.stop()


def news(last: Change | None, view: EngineView) -> Change | None:
    """What there is to say after `last`, if anything."""
    launch = view.launch if view.reachable else None
    state = State.STARTING if view.state in COMING_UP else view.state
    if state in (State.IDLE, State.DRAINING) or (state is State.STARTING and launch is None):
        return None
    what = launch.id if launch else ""
    if last is not None and last.state is state and what in ("", last.launch):
        return None
    if launch is not None:
        profile = f"{launch.profile} {launch.revision}".rstrip()
    else:
        profile = last.profile if last else " ".join(view.active or ("no profile",))
    return Change(state, what, profile, _what(view, state))


def _what(view: EngineView, state: State) -> str:
    launch = view.launch if view.reachable else None
    if state is State.STARTING:
        return _why_starting(launch) if launch else "starting"
    if state is State.READY:
        return f"ready after {formats.seconds(launch.ready_after_s)}" if launch and launch.ready_after_s else "ready"
    return f"{view.word}: {why}" if (why := _why(view)) else view.word


def _why_starting(launch: LaunchRecord) -> str:
    if launch.restart_of:
        return "restarting automatically"
    if launch.returned_after:
        return "starting again, since the model that a request asked for did not start"
    return "starting, as a request asked for it" if launch.requested_by else "starting"


def _why(view: EngineView) -> str:
    """Of an engine that ended, in a sentence."""
    if view.reachable:
        return view.cause
    if view.problem:
        return view.problem.message
    return view.stopped_because or (view.control.ended or "")


def _line(change: Change) -> str:
    return f"Engine   {time.strftime('%H:%M:%S')}  {change.profile}: {change.text}"


def _progress(view: EngineView) -> str:
    """A launch on its way, in one line."""
    profile = " ".join(view.revision or ("no profile",))
    if not (view.launch and view.launch.phases):
        return f"{view.word}: {profile}"
    phase = view.launch.phases[-1]
    return f"{view.word}: {profile}, {phase.phase} {formats.progress(phase)}".rstrip()


def _show(status: Status, view: EngineView) -> None:
    if view.state in COMING_UP:
        status.update(escape(_progress(view)))
        status.start()
    else:
        status.stop()
