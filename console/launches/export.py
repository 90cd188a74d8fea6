"""One launch as a file to send to support: what it left, what it ran on, and how its profile was understood."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import yaml

from appliance import __version__
from appliance.front_door_token import front_door_token
from appliance.home import Home
from appliance.launches.folder import DIAGNOSIS, EVENTS, LOG, PROFILE, RECORD, STACKS, LaunchFolder
from appliance.profile import document as documents
from appliance.profile.schema import ProfileError
from appliance.redaction import Redactor, secrets_of_environment
from console.hardware.machines import Machines
from console.launches.archive import Part, stream
from console.launches.follow_up import FOLLOW_UP
from console.launches.log_excerpt import excerpt, is_whole
from console.logs import ansi
from console.profiles.inspection import Inspector

LIBRARIES = (
    "torch", "triton", "flashinfer-python", "vllm", "transformers", "tokenizers", "safetensors", "numpy", "msgspec",
    "pyzmq", "nvidia-ml-py", "litestar", "uvicorn", "sqlalchemy",
)  # fmt: skip
STACKS_BYTES = 8 << 20
DOCUMENT_BYTES = 4 << 20
"""For launch.json and the other small files; a larger one is damaged, and truncated."""

_LOG_EVENT = re.compile(r'\{"type":"log","first":(\d+),"lines":\[')


def file_name(launch_id: str) -> str:
    return f"ingot-launch-{launch_id}.zip"


def export(home: Home, folder: LaunchFolder, machines: Machines, inspector: Inspector) -> Iterator[bytes]:
    """The bytes of a zip file. Blocking: for a thread."""
    record = folder.read().record
    heading = (
        f"Launch {record.id} of {record.profile or 'unknown profile'} {record.revision}, engine {record.engine}: "
        f"{record.state}.\nCreated by Ingot {__version__} on {time.strftime('%Y-%m-%d %H:%M:%S %Z')}."
    )
    evidence = record.diagnosis.evidence[0].number if record.diagnosis and record.diagnosis.evidence else None
    sizes = folder.sizes()
    shortened = LOG in sizes and not is_whole(folder.log)
    cut = " It has the beginning, the lines around the first error, and the end." if shortened else ""
    files: list[tuple[str, str, Callable[[Redactor], Iterable[str]]]] = [
        (LOG, f"The engine's output, without colours.{cut}", lambda to: _log(folder.log, evidence, to)),
        (EVENTS, "Every change of the launch, in order, without log lines, which are in engine.log.",
         lambda to: _events(folder.path / EVENTS, to)),
        (RECORD, "A summary: state, phases, exit status.", lambda to: _json_file(folder.path / RECORD, to)),
        (PROFILE, "The profile that was launched.", lambda to: _profile(folder.path / PROFILE, to)),
        (DIAGNOSIS, "The diagnosis of its log.", lambda to: _json_file(folder.path / DIAGNOSIS, to)),
        (STACKS, "Stack traces of its processes when it hung.", lambda to: _text_file(folder.path / STACKS, to)),
        (FOLLOW_UP, "What was started instead.", lambda to: _json_file(folder.path / FOLLOW_UP, to)),
    ]  # fmt: skip
    parts = [
        Part(name, what, content, sizes[name] if name == LOG and shortened else None)
        for name, what, content in files
        if name in sizes
    ]
    parts += [
        Part("findings.json", "What preflight found before the launch.", lambda to: _document(record.findings, to)),
        Part("effective.json", "The effective value and source of each setting, and the findings of preflight, both as "
             "of the export.", lambda to: _document(_effective(folder, inspector), to)),
        Part("hardware.json", "The machine: GPUs, memory, driver, limits, relevant environment variables, libraries.",
             lambda to: _document(_hardware(machines), to)),
        Part("versions.json", "The versions of the console's components.", lambda to: _document(_versions(), to)),
    ]  # fmt: skip
    return stream(parts, heading, _known_secrets(home))


def _known_secrets(home: Home) -> list[str]:
    known = secrets_of_environment()
    with contextlib.suppress(OSError, UnicodeDecodeError):  # there is none, or none that could be in a text
        known.append(home.console_token.read_text("ascii").strip())
        known.append(front_door_token(home) or "")
    return known


def _log(path: Path, evidence: int | None, redactor: Redactor) -> Iterator[str]:
    return redactor.lines(_without_colours(line) for line in excerpt(path, evidence_line=evidence))


def _without_colours(line: str) -> str:
    return ansi.plain(line.rstrip("\n")) + "\n" if "\x1b" in line else line


def _text_file(path: Path, redactor: Redactor) -> Iterator[str]:
    return redactor.lines(_read(path, STACKS_BYTES).splitlines(keepends=True))


def _json_file(path: Path, redactor: Redactor) -> Iterator[str]:
    """A document is gone through value by value; what is none, as text."""
    text = _read(path, DOCUMENT_BYTES)
    try:
        return _document(json.loads(text), redactor)
    except (ValueError, RecursionError):
        return redactor.lines(text.splitlines(keepends=True))


def _profile(path: Path, redactor: Redactor) -> Iterator[str]:
    text = _read(path, DOCUMENT_BYTES)
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        return redactor.lines(text.splitlines(keepends=True))
    return iter((yaml.safe_dump(redactor.value(value), sort_keys=False, allow_unicode=True),))


def _events(path: Path, redactor: Redactor) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        while line := file.readline(DOCUMENT_BYTES):
            if (log := _LOG_EVENT.search(line[:400])) is not None:
                yield line[: log.start()] + f'{{"type":"log","first":{log[1]},"lines":[]}}}}\n'
                while not line.endswith("\n") and (line := file.readline(DOCUMENT_BYTES)):
                    pass
                continue
            try:
                yield json.dumps(redactor.value(json.loads(line)), ensure_ascii=False) + "\n"
            except (ValueError, RecursionError):
                yield from redactor.lines((line,))


def _document(value: Any, redactor: Redactor) -> Iterator[str]:
    plain = json.loads(msgspec.json.encode(value, enc_hook=str))
    yield json.dumps(redactor.value(plain), indent=2, ensure_ascii=False) + "\n"


def _effective(folder: LaunchFolder, inspector: Inspector) -> dict[str, Any]:
    try:
        document = documents.parse(folder.profile_text())
    except ProfileError as error:
        return {"problem": str(error)}
    found = inspector.inspect(document)
    return {
        "settings": found.effective,
        "problems": [str(problem) for problem in found.problems],
        "memory": found.memory,
        "device": found.device,
        "findings-now": found.findings,
    }


def _hardware(machines: Machines) -> dict[str, Any]:
    seen = machines.look()
    return {"machine": seen.machine, "told-by": seen.whose, "problem": seen.problem}


def _versions() -> dict[str, Any]:
    libraries: dict[str, str | None] = {}
    for name in LIBRARIES:
        try:
            libraries[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            libraries[name] = None
    return {
        "ingot": __version__,
        "python": sys.version,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "libraries": libraries,
    }


def _read(path: Path, limit: int) -> str:
    """At most `limit` bytes; empty if the file has disappeared."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size  # `read` sets aside as much memory as it is asked for
            return file.read(min(size, limit)).decode("utf-8", "replace")
    except OSError:
        return ""
