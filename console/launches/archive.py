"""A zip file that is sent while it is made: no part of it is ever whole in memory, and none holds a secret."""

from __future__ import annotations

import textwrap
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from console.launches.redaction import Redactor

CHUNK = 64 * 1024
README = "README.txt"

Moment = tuple[int, int, int, int, int, int]
# What a zip file can say. A machine whose clock lost its battery begins in 1970.
EARLIEST: Moment = (1980, 1, 1, 0, 0, 0)
LATEST: Moment = (2107, 12, 31, 23, 59, 58)


class Part(NamedTuple):
    """One file of an archive. `content` gives its text piece by piece, out of which it took the secrets itself, with
    the redactor that it is given. `what` says what it holds."""

    name: str
    what: str
    content: Callable[[Redactor], Iterable[str]]


class _Written(NamedTuple):
    part: Part
    size: int
    removed: Counter[str]


def stream(parts: Iterable[Part], heading: str, known: Iterable[str] = ()) -> Iterator[bytes]:
    """The archive's bytes; the last file in it, README.txt, says what is in it and what was taken out. `known` are
    secrets by their value."""
    sink = _Sink()
    now = min(max(time.localtime()[:6], EARLIEST), LATEST)
    known = list(known)
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        written: list[_Written] = []
        for part in parts:
            redactor = Redactor(known)
            size = 0
            with archive.open(_entry(part.name, now), "w", force_zip64=True) as file:
                for chunk in _chunks(part.content(redactor)):
                    file.write(chunk)
                    size += len(chunk)
                    yield sink.take()
            written.append(_Written(part, size, redactor.counts))
        archive.writestr(_entry(README, now), _readme(heading, written))
    yield sink.take()


def _entry(name: str, now: Moment) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, now)
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


def _chunks(texts: Iterable[str]) -> Iterator[bytes]:
    """What cannot be read is said in its place: the other files are sent all the same."""
    waiting: list[str] = []
    size = 0
    try:
        for text in texts:
            waiting.append(text)
            size += len(text)
            if size >= CHUNK:
                yield "".join(waiting).encode("utf-8", "replace")
                waiting, size = [], 0
    except OSError as error:
        waiting.append(f"\n[Ingot could not read on here: {error.strerror or error}]\n")
    yield "".join(waiting).encode("utf-8", "replace")


def _readme(heading: str, written: list[_Written]) -> str:
    removed: Counter[str] = Counter()
    rows = []
    for item in written:
        removed += item.removed
        taken = f" Secrets removed: {_counted(item.removed)}." if item.removed else ""
        rows.append(f"{item.part.name} ({item.size:,} bytes)\n{_wrapped(item.part.what + taken)}")
    gone = f"{removed.total()}: {_counted(removed)}" if removed else "none was found"
    return "\n".join(
        (
            heading,
            "",
            "WHAT IS IN IT",
            "",
            *rows,
            "",
            "WHAT WAS TAKEN OUT",
            "",
            _wrapped(
                f"Secrets ({gone}). API keys, tokens, Authorization headers, cookies, passwords in addresses, private "
                "keys, set-up codes, and the values of settings and environment variables that are named like one "
                "stand as <removed: what it was>. They are found by their form and name: look through the files "
                "before you send them if the log may hold a secret of another form."
            ),
            "",
            "WHAT NEVER WAS IN IT",
            "",
            _wrapped(
                "Prompts and answers (Ingot does not log them), the model's weights, the database with accounts and "
                "API keys. Folder names and the names of users in them are as they were."
            ),
            "",
        )
    )


def _counted(removed: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(removed.items()))


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100, initial_indent="  ", subsequent_indent="  ")


class _Sink:
    """What zipfile writes to: it cannot be gone back in, so that what was taken from it is gone."""

    def __init__(self) -> None:
        self._waiting = bytearray()

    def write(self, data: bytes) -> int:
        self._waiting += data
        return len(data)

    def flush(self) -> None:
        """There is nothing behind it to flush to."""

    def close(self) -> None:
        """There is nothing to close."""

    def take(self) -> bytes:
        taken = bytes(self._waiting)
        self._waiting.clear()
        return taken
