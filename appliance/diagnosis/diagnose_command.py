"""`ingot diagnose`: what an engine's log means, whichever engine wrote it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from appliance.diagnosis.diagnose import diagnose as diagnose_lines
from appliance.diagnosis.log_bytes import NotTextError
from appliance.diagnosis.log_text import read_log
from appliance.diagnosis.outcome import by_state
from appliance.diagnosis.raise_sites.lookup import installed_sites
from appliance.given_file import PIECE_BYTES, is_pipe, pieces
from appliance.home import Home
from appliance.home_lock import may_be_held
from appliance.launches.catalogue import Catalogue
from appliance.launches.folder import LOG, LaunchFolder
from appliance.launches.process_ends import first_failure, in_order
from appliance.launches.states import ENDED, under_way
from appliance.protocol import Diagnosis, LaunchRecord, Outcome, ProcessEnd, State

MAX_STREAM_BYTES = 2 << 30
# 2 is click's, for what cannot be read.
EXIT_STATUS = {Outcome.SERVES: 0, Outcome.FAILED: 1, Outcome.NOT_READY: 3, Outcome.UNCLEAR: 4}


@click.command()
@click.argument("source", metavar="FILE|LAUNCH|-")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def diagnose(source: str, as_json: bool) -> None:
    """Find the cause of an engine's failure in its log, with the evidence and a fix.

    FILE is a log of Ingot's engine, vLLM, SGLang or a container, also compressed (gzip, bzip2, xz); - reads standard
    input. LAUNCH is a launch's ID or folder.

    Exit status: 0 the engine serves, 1 it failed, 2 the log could not be read, 3 it is not ready where the log ends, 4
    the log does not show it.
    """
    path = None if source == "-" else _find(source)
    diagnosis = _of_stream(_standard_input(), "standard input") if path is None else _of_path(path)
    ends = _process_ends(path) if path is not None and path.is_dir() else []
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(as_data(diagnosis, ends))).decode())
    else:
        from appliance.diagnosis.printing import show, show_ends  # rich takes longer to import than most logs to read

        show(diagnosis)
        show_ends(ends)
    sys.exit(EXIT_STATUS[diagnosis.outcome])


def as_data(diagnosis: Diagnosis, ends: Sequence[ProcessEnd] = ()) -> dict[str, Any]:
    """What a program gets."""
    processes = {"processes": ends} if ends else {}
    return processes | {
        "outcome": diagnosis.outcome,
        "family": diagnosis.family,
        "cause": diagnosis.cause,
        "summary": diagnosis.summary,
        "evidence": [{"line": line.number, "text": line.text} for line in diagnosis.evidence],
        "fix": diagnosis.fix,
    }


def _find(source: str) -> Path:
    path = Path(source)
    if path.exists():
        return path
    launch = Home.from_environment().launch(source)
    if "/" not in source and launch.is_dir():
        return launch
    raise click.UsageError(f"No file or launch named {source}. Give a log file, a launch ID, or - for standard input.")


def _standard_input() -> Iterator[bytes]:
    return iter(lambda: sys.stdin.buffer.read(PIECE_BYTES), b"")


def _of_stream(stream: Iterator[bytes], name: str) -> Diagnosis:
    """Through a file, so that a long log takes no memory."""
    size = 0
    with tempfile.NamedTemporaryFile(prefix="ingot-diagnose-") as file:
        for piece in stream:
            size += len(piece)
            if size > MAX_STREAM_BYTES:
                raise click.UsageError(
                    f"{name} holds more than {MAX_STREAM_BYTES >> 30} GiB. Save it to a file, and give that file."
                )
            file.write(piece)
        file.flush()
        return _of_log(Path(file.name), name)


def _of_path(path: Path) -> Diagnosis:
    if path.is_dir():
        return _of_launch(path)
    try:
        return _of_stream(pieces(path), str(path)) if is_pipe(path) else _of_log(path, str(path))
    except OSError as error:
        raise click.UsageError(
            f"{path} cannot be read: {error.strerror}. Give a log file, a launch ID, or - for standard input."
        ) from error


def _of_launch(path: Path) -> Diagnosis:
    folder = LaunchFolder(path)
    if not folder.log.is_file():
        raise click.UsageError(f"{path} has no {LOG}. Give a log file, or a launch's folder.")
    record = folder.stored_record()
    found = _of_log(folder.log, str(path), _known_of(folder))
    if record is None:
        return found
    runs = _runs(path, record)
    if found.family is None and (record.cut_off or not (runs or record.state in ENDED)):
        return by_state(record, runs=runs) or found
    if found.family is None and record.diagnosis is not None:
        return record.diagnosis  # the supervisor knew how it ended: a status, the kernel, a check
    if record.diagnosis is not None and (found.family, found.cause) == (
        record.diagnosis.family,
        record.diagnosis.cause,
    ):
        found = msgspec.structs.replace(found, fix=record.diagnosis.fix)  # which preflight has seen
    return found if found.outcome is Outcome.FAILED else by_state(record, runs=runs) or found


def _runs(path: Path, record: LaunchRecord) -> bool:
    """Whether it may still run. A folder that was copied from elsewhere does not say."""
    home = Home.at(path.resolve().parent.parent)
    if home.launch(record.id) != path.resolve():
        return record.state not in ENDED
    return under_way(record, Catalogue(home).current(), engine_runs=may_be_held(home.lock))


def _of_log(path: Path, name: str, told: dict[str, Any] | None = None) -> Diagnosis:
    try:
        lines = read_log(path)
    except NotTextError as error:
        raise click.UsageError(f"{name} is not a log: {error}.") from error
    except OSError as error:
        raise click.UsageError(f"{name} cannot be read: {error.strerror or error}.") from error
    return diagnose_lines(lines, sites=installed_sites(), **(told or {}))


def _process_ends(launch: Path) -> list[ProcessEnd]:
    return in_order(LaunchFolder(launch).record().process_ends)


def _known_of(folder: LaunchFolder) -> dict[str, Any]:
    """What the supervisor knew of this launch besides its log."""
    profile = _profile_of(folder)
    known: dict[str, Any] = {"profile": profile, "model": _model_of(profile)}
    record = folder.stored_record()
    if record is None:
        return known
    failed = record.state in (State.FAILED, State.HUNG)
    known["failed"] = failed and not record.cut_off
    if failed and (died := first_failure(record)) is not None:
        several = len(record.process_ends) > 1
        known |= {"died": died, "several_ended": several, "killed_by_kernel": died.kernel or None}
    if record.state is not State.HUNG:
        return known
    return {**known, "stacks": folder.read_stacks(), "hang": record.reason}


def _model_of(profile: dict[str, Any] | None) -> Path | None:
    """The folder of its model; None where it is not on this machine."""
    from appliance.checkpoint.errors import CheckpointError
    from appliance.checkpoint.folder import locate
    from appliance.profile.validation import get

    path = get(profile or {}, "model.path")
    try:
        return locate(path, Home.from_environment()) if isinstance(path, str) else None
    except CheckpointError:
        return None


def _profile_of(folder: LaunchFolder) -> dict[str, Any] | None:
    """What was launched; None where it was not kept."""
    from appliance.profile.document import parse
    from appliance.profile.schema import ProfileError

    try:
        return parse(folder.profile.read_bytes())
    except (OSError, ProfileError):
        return None
