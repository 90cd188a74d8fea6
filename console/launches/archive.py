"""A zip file that is streamed while it is created: no member is held in memory whole, and secrets are removed."""

from __future__ import annotations

import textwrap
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from appliance.redaction import Redactor

CHUNK = 64 * 1024
README = "README.txt"

Moment = tuple[int, int, int, int, int, int]
# The range of a zip file's times. Without a clock battery, a machine starts in 1970.
EARLIEST: Moment = (1980, 1, 1, 0, 0, 0)
LATEST: Moment = (2107, 12, 31, 23, 59, 58)


class Part(NamedTuple):
    """One file of an archive. `content` yields its text piece by piece, having removed secrets with the given redactor.
    `what` describes it; `shortened_from` is the size in bytes of a file that is not included whole."""

    name: str
    what: str
    content: Callable[[Redactor], Iterable[str]]
    shortened_from: int | None = None


class _Written(NamedTuple):
    part: Part
    size: int
    removed: Counter[str]


def stream(parts: Iterable[Part], heading: str, known: Iterable[str] = ()) -> Iterator[bytes]:
    """The archive's bytes. Its last file, README.txt, says what it contains and what was removed. `known` are the
    values of known secrets."""
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
    """A read error is noted in the file, so that the other files are still sent."""
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
        waiting.append(f"\n[Ingot could not read the rest: {error.strerror or error}]\n")
    yield "".join(waiting).encode("utf-8", "replace")


def _readme(heading: str, written: list[_Written]) -> str:
    removed: Counter[str] = Counter()
    rows = []
    for item in written:
        removed += item.removed
        taken = f" Secrets removed: {_counted(item.removed)}." if item.removed else ""
        whole = f", shortened from {item.part.shortened_from:,}" if item.part.shortened_from is not None else ""
        rows.append(f"{item.part.name} ({item.size:,} bytes{whole})\n{_wrapped(item.part.what + taken)}")
    gone = f"{removed.total()}: {_counted(removed)}" if removed else "none were found"
    return "\n".join(
        (
            heading,
            "",
            "CONTENTS",
            "",
            *rows,
            "",
            "REMOVED SECRETS",
            "",
            _wrapped(
                f"Removed: {gone}. API keys, tokens, Authorization headers, cookies, passwords in URLs, private "
                "keys, set-up codes, and the values of settings and environment variables with such names are "
                "replaced by <removed: kind of secret>. They are recognised by form and name. If the log may contain "
                "other kinds of secrets, check the files before you send them."
            ),
            "",
            "NEVER INCLUDED",
            "",
            _wrapped(
                "Prompts and answers (Ingot does not log them), model weights, and the database with accounts and API "
                "keys. Paths, and any user names in them, are not changed."
            ),
            "",
        )
    )


def _counted(removed: Counter[str]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in sorted(removed.items()))


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100, initial_indent="  ", subsequent_indent="  ")


class _Sink:
    """An unseekable file for zipfile; what is taken from it is discarded."""

    def __init__(self) -> None:
        self._waiting = bytearray()

    def write(self, data: bytes) -> int:
        self._waiting += data
        return len(data)

    def flush(self) -> None:
        """Nothing to flush."""

    def close(self) -> None:
        """Nothing to close."""

    def take(self) -> bytes:
        taken = bytes(self._waiting)
        self._waiting.clear()
        return taken
