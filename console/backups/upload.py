"""Receives a backup from a browser: the only request that may exceed the console's size limit. It is written to disk as
it arrives, and kept only if it is a valid and complete backup."""

from __future__ import annotations

import asyncio
from pathlib import Path

from litestar.exceptions import ClientException
from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from console.backups.errors import BackupError
from console.backups.folder import BackupFolder, Incoming, incoming
from console.formats import gib
from console.parts import PageRequest

LIMIT_BYTES = 64 << 30
"""Enough for years of launches. Free disk space limits it, too."""
FIELD = "file"
_WRITE_BYTES = 1 << 20
AGAIN = "Upload the file again."


async def receive(request: PageRequest, folder: BackupFolder) -> Path:
    """Receive the form's backup and return its path. Raises BackupError."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get("boundary", "")
    if kind != "multipart/form-data" or not boundary:
        raise BackupError("no-file", "No file was uploaded.", f"Send a form with a file in the field {FIELD!r}.")
    expected = _expected(request)
    with incoming(folder, expected) as received:
        try:
            await _take(request, PushMultipartParser(boundary, max_segment_count=8), received)
        except MultipartError as error:
            raise BackupError("interrupted", f"The upload is incomplete: {error}.", AGAIN, status=400) from error
        except ClientException as error:
            raise BackupError("interrupted", "The upload was interrupted.", AGAIN, status=400) from error
        if not received.size:
            raise BackupError("no-file", "No file was chosen.", "Choose a backup, then select Upload.")
        return await asyncio.to_thread(received.keep)


def _expected(request: PageRequest) -> int:
    """The size that the browser announces, in bytes; 0 if it announces none."""
    text = request.headers.get("content-length", "")
    size = int(text) if text.isascii() and text.isdecimal() else 0
    if size > LIMIT_BYTES:
        raise _too_large()
    return size


async def _take(request: PageRequest, parser: PushMultipartParser, received: Incoming) -> None:
    wanted = False
    sent = 0
    waiting: list[bytes] = []
    async for chunk in request.stream():
        sent += len(chunk)
        if sent > LIMIT_BYTES:
            raise _too_large()
        for event in parser.parse(chunk):
            if isinstance(event, MultipartSegment):
                wanted = event.name == FIELD
            elif event and wanted:
                waiting.append(bytes(event))
        if sum(map(len, waiting)) >= _WRITE_BYTES:
            await asyncio.to_thread(received.write, b"".join(waiting))
            waiting = []
    parser.close()
    await asyncio.to_thread(received.write, b"".join(waiting))


def _too_large() -> BackupError:
    return BackupError(
        "too-large",
        f"An upload can be at most {gib(LIMIT_BYTES)}.",
        "Copy the file into backups/ in the state folder instead. It will appear in the list.",
        status=413,
    )
