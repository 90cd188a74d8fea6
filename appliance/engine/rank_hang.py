"""What is said of ranks that hang: which, where they stand, and what to do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final

from appliance.core_protocol import Fatal
from appliance.diagnosis.stuck_processes import MAIN_THREAD, where_they_are
from appliance.engine.rank_watch import Hang
from appliance.engine_process.process_tree import descendants, state_of
from appliance.engine_process.stacks import dump_stacks
from appliance.launches.stacks import Frame, Process, Stacks, parse

# Families of places where a process works, however long that takes.
WORKS: Final = ("jit-toolchain", "compile")
DEBUGGED: Final = "t"
IMPORTS: Final = "<frozen importlib._bootstrap"  # from a cold disk: of a library that the other has read already
REMEDY: Final = "Start it again; if it hangs there again, that line is what to look at."
REMEDY_ALL: Final = (
    "Look for Xid lines in the kernel's log; try without what GPUs send each other directly (NCCL_P2P_DISABLE=1), then "
    "without CUDA graphs (enforce-eager)."
)


def told(hang: Hang, pids: Sequence[int]) -> Fatal | None:
    """`pids` are of all ranks in order. None where those that seem to hang compile or import, or a debugger holds
    them."""
    text = dump_stacks(os.getpid())
    stacks = parse(text)
    if any(is_busy(pids[rank], stacks) for rank in hang.ranks):
        return None
    frames = [list(_frames_of(pids[rank], stacks)) for rank in hang.ranks]
    who = " and ".join(f"rank {rank} (pid {pids[rank]})" for rank in hang.ranks)
    where = next((f" in {each[0].function} ({each[0].place})" for each in frames if each), "")
    if hang.all_wait:
        message = (
            f"no rank of the model computes, and for {hang.seconds:.0f} s {who} waited{where} for a GPU, or for other "
            f"ranks. {REMEDY_ALL}"
        )
        name = "RanksWaitError"
    else:
        verb = "hangs" if len(hang.ranks) == 1 else "hang"
        message = f"{who} of the model {verb}{where}: the others have waited for {hang.seconds:.1f} s. {REMEDY}"
        name = "RankHungError"
    message = message[0].upper() + message[1:]
    return Fatal(
        exception=name,
        message=message,
        traceback=_as_traceback(next(filter(None, frames), []), f"{name}: {message}"),
        stacks=text,
    )


def is_busy(pid: int, stacks: Stacks) -> bool:
    if state_of(pid) == DEBUGGED:
        return True
    own = {str(each) for each in (pid, *descendants(pid))}
    found = where_they_are(stacks)
    if any(IMPORTS in frame.place for frame in _frames_of(pid, stacks)):
        return True
    return any(found[each].place.family in WORKS for each in own & found.keys())


def _frames_of(pid: int, stacks: Stacks) -> Iterator[Frame]:
    """Of its main thread, innermost first; none where it could not be inspected."""
    process = next((each for each in stacks.processes if each.pid == str(pid)), Process(str(pid), ""))
    yield from next((thread.frames for thread in process.threads if thread.name in (MAIN_THREAD, str(pid))), ())


def _as_traceback(frames: Sequence[Frame], last: str) -> str:
    """As Python would have printed it, had the exception been raised there."""
    if not frames:
        return last
    lines = ["Traceback (most recent call last):"]
    for frame in reversed(frames):
        file, _, line = frame.place.rpartition(":")
        lines.append(f'  File "{file}", line {line}, in {frame.function}')
    return "\n".join((*lines, last))
