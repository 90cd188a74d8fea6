"""The record that an import leaves in a model's folder: where the model came from, and what its files were then."""

from __future__ import annotations

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

    def is_that_of(self, path: Path) -> bool:
        """By size and time alone: no file is read."""
        try:
            status = path.stat()
        except OSError:
            return False
        return (self.size, self.modified_ns) == (status.st_size, status.st_mtime_ns)


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model came from: `source` is the bundle (its first part) or folder below the media folder, and `name` the
    model's there, empty in old records. `signed_by` is empty if it was not signed."""

    source: str
    name: str = ""
    signed_by: str
    author: str
    imported: float
    files: dict[str, RecordedFile]


def write_record(
    folder: Path, digests: Mapping[str, str], *, source: str, name: str, signed_by: str, author: str
) -> None:
    files = {}
    for file, digest in digests.items():
        status = (folder / file).stat()
        files[file] = RecordedFile(status.st_size, status.st_mtime_ns, digest)
    record = Record(source=source, name=name, signed_by=signed_by, author=author, imported=time.time(), files=files)
    write_atomically(folder / RECORD, msgspec.json.encode(record), mode=0o644)


def read_record(folder: Path) -> Record | None:
    try:
        return msgspec.json.decode(read_file(folder / RECORD, RECORD_BYTES), type=Record)
    except (OSError, msgspec.MsgspecError):
        return None
