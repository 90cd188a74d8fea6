"""What can be done with the engine in each of its states, as data: the strip's main button and the menu beside it."""

from __future__ import annotations

from typing import Final, NamedTuple

from appliance.protocol import State


class Action(NamedTuple):
    """`path` is what its button posts to; `asks`: it ends running requests, so the page asks first."""

    id: str
    label: str
    icon: str
    path: str
    asks: bool


ACTIONS: Final = {
    action.id: action
    for action in (
        Action("start", "Start", "play", "/engine/start", asks=False),
        Action("start-again", "Start again", "play", "/engine/restart", asks=False),
        Action("stop", "Stop", "square", "/engine/stop", asks=True),
        Action("restart", "Restart", "rotate-cw", "/engine/restart", asks=True),
        Action("roll-back", "Roll back to {target}", "undo-2", "/profiles/-/roll-back", asks=True),
        Action("finish-now", "{then} now", "power", "/engine/finish-now", asks=False),
    )
}

OFFERED: Final[dict[State, tuple[str, ...]]] = {
    State.IDLE: ("start",),
    State.PREFLIGHT: ("stop", "restart"),
    State.STARTING: ("stop", "restart"),
    State.READY: ("restart", "stop"),
    State.DRAINING: ("finish-now",),
    State.STOPPED: ("start",),
    State.FAILED: ("roll-back", "start-again", "stop"),
    State.HUNG: ("roll-back", "start-again", "stop"),
}
"""The first possible action is the main button; the others are its menu."""

GONE: Final = ("start-again", "roll-back")
"""For a failed process that is gone: there is nothing to stop, and a kill does not mean that the revision is bad."""

WITH_PROBLEM: Final[dict[str, tuple[str, ...]]] = {
    "engine-killed": GONE,
    "engine-died": GONE,
    "container-missing": (),
    "container-paused": ("restart",),
    "container-restarting": ("stop",),
}
"""The actions for problems that starting does not solve, or not alone, by the problem's id."""

AFTER_PROBLEM: Final = ("start",)
