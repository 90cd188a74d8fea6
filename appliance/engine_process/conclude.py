"""How a launch ends: stacks if it hangs, then its processes, its diagnosis, and last its state."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from appliance.core_protocol import Fatal
from appliance.engine_process.child import Child
from appliance.engine_process.launch_journal import LaunchJournal
from appliance.engine_process.stacks import dump_stacks, has_stacks
from appliance.exit_status import exit_in_words
from appliance.launches.folder import LaunchFolder
from appliance.launches.process_ends import first_failure
from appliance.protocol import Diagnosis, State

if TYPE_CHECKING:
    from appliance.engine_process.offered_fix import Check

# An engine holds nothing that would be lost: it is asked first only so that its log ends in peace.
TERM_GRACE_S = 1.0


class End(msgspec.Struct, frozen=True, kw_only=True):
    """Why a launch ends. Without a reason it is to be found in what the engine said last. `explained`: the findings of
    the launch say it all, and no log need be read. `otherwise` is the reason where nothing better is found."""

    state: State
    reason: str = ""
    error: BaseException | None = None
    otherwise: str = ""
    explained: bool = False


async def end_processes(
    end: End, child: Child | None, ask_to_end: Callable[[], float], folder: LaunchFolder
) -> int | None:
    """The exit status of an engine that ended by itself; None of one that was ended here."""
    if child is None:
        return None
    if child.exited:
        return await child.wait()
    first = signal.SIGTERM
    if end.state is State.HUNG:
        stacks = ""
        with contextlib.suppress(OSError):  # a full disk, or no more files to be had: it must end nevertheless
            stacks = await asyncio.to_thread(dump_stacks, child.pid)
            folder.write_stacks(stacks)
        # Where no other process may inspect it, Python's own fault handler writes the stacks into the log on SIGABRT.
        first = signal.SIGTERM if has_stacks(stacks) else signal.SIGABRT
    elif end.state is State.STOPPED:
        patience_s = ask_to_end()
        if patience_s and await child.ended_within(patience_s):
            return await child.wait()
    await child.end(TERM_GRACE_S if end.state is not State.FAILED else 0.0, first)
    return None


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What the supervisor saw of an end. What a hung engine printed after `last_line`, as it was ended, is no
    evidence. `model` is the folder of its model, where it came so far."""

    fatal: Fatal | None
    exit_status: int | None
    killed_by_kernel: str | None
    last_line: int
    model: Path | None


async def conclude(end: End, launch: LaunchJournal, seen: Seen, check: Check) -> str:
    """Writes diagnosis and final state; the reason in one sentence. `check` judges a profile as a fix changes it."""
    exit_words = exit_in_words(seen.exit_status) if seen.exit_status is not None else None
    reason = end.reason
    if end.state is not State.STOPPED and not end.explained:
        found, diagnosis = await asyncio.to_thread(_read_log, end, launch, seen)
        if diagnosis.fix is not None and diagnosis.fix.patch:  # its preflight takes a while: the cause comes first
            without_patch = msgspec.structs.replace(diagnosis.fix, patch=None)
            launch.diagnose(msgspec.structs.replace(diagnosis, fix=without_patch))
        launch.diagnose(await asyncio.to_thread(_offered, diagnosis, launch, check))
        ended = f"the engine ended: {exit_words}" if exit_words else end.otherwise or "the engine was stopped"
        reason = reason or found or ended
    launch.change(end.state, reason, exit_words)
    return reason


def _read_log(end: End, launch: LaunchJournal, seen: Seen) -> tuple[str | None, Diagnosis]:
    """Blocking. The first exception in one line, if there is one, and what it means."""
    from appliance.diagnosis.isolated import Circumstances, diagnose_isolated  # late: only a failed launch needs it

    hung = end.state is State.HUNG
    answer = diagnose_isolated(
        launch.folder.log,
        Circumstances(
            exit_status=seen.exit_status,
            fatal=seen.fatal or _as_fatal(end.error),
            hang=end.reason if hung else None,
            killed_by_kernel=seen.killed_by_kernel,
            died=first_failure(launch.record),
            several_ended=len(launch.record.process_ends) > 1,
            stacks=launch.folder.read_stacks() if hung else None,
            profile=launch.document,
            model=str(seen.model) if seen.model is not None else None,
            last_line=seen.last_line if hung else None,
        ),
    )
    return answer.headline, answer.diagnosis


def _offered(diagnosis: Diagnosis, launch: LaunchJournal, check: Check) -> Diagnosis:
    """Blocking."""
    from appliance.engine_process.offered_fix import with_offered_fix, with_start_again  # late, as the diagnosis

    again = with_start_again(diagnosis, launch.record.profile, launch.record.revision)
    return with_offered_fix(again, launch.document, check)


def _as_fatal(error: BaseException | None) -> Fatal | None:
    """An error on our side of the launch (its self-test, the tokenizer), reported like one of the core's own."""
    if error is None:
        return None
    return Fatal(exception=type(error).__name__, message=str(error), traceback="")
