"""Compares a model to be imported with what the models folder has under its name; and the record that an import leaves
in the model's folder, so that comparing does not need to read the weights again."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from appliance.home import read_file, write_atomically

RECORD = ".ingot-import.json"
RECORD_BYTES = 16 << 20


class RecordedFile(msgspec.Struct, frozen=True):
    size: int
    modified_ns: int
    sha256: str


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model came from. `signed_by` is empty if it was not signed."""

    source: str
    signed_by: str
    author: str
    imported: float
    files: dict[str, RecordedFile]


def write_record(folder: Path, digests: Mapping[str, str], *, source: str, signed_by: str, author: str) -> None:
    files = {}
    for name, digest in digests.items():
        status = (folder / name).stat()
        files[name] = RecordedFile(status.st_size, status.st_mtime_ns, digest)
    record = Record(source=source, signed_by=signed_by, author=author, imported=time.time(), files=files)
    write_atomically(folder / RECORD, msgspec.json.encode(record), mode=0o644)


def read_record(folder: Path) -> Record | None:
    try:
        return msgspec.json.decode(read_file(folder / RECORD, RECORD_BYTES), type=Record)
    except (OSError, msgspec.MsgspecError):
        return None


def standing(models: Path, name: str, sizes: Mapping[str, int], digests: Mapping[str, str]) -> str:
    """`free`: the name is not used. `here`: the same model, imported and unchanged since. `alike`: files of the same
    names and sizes, whose content has not been compared. `taken`: another model has the name."""
    folder = models / name
    if not os.path.lexists(folder):
        return "free"
    try:
        present = {file: (folder / file).stat() for file in sizes}
    except OSError:
        return "taken"
    if any(status.st_size != sizes[file] for file, status in present.items()):
        return "taken"
    record = read_record(folder)
    if record is None or not digests:
        return "alike"
    for file, status in present.items():
        known = record.files.get(file)
        if known is None or (known.size, known.modified_ns) != (status.st_size, status.st_mtime_ns):
            return "alike"
        if known.sha256 != digests[file]:
            return "taken"
    return "here"


def free_name(models: Path, name: str) -> str:
    """`Qwen3-8B-2`, if Qwen3-8B is taken."""
    number = 2
    while os.path.lexists(models / f"{name}-{number}"):
        number += 1
    return f"{name}-{number}"
