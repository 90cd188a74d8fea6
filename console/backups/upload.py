"""Receives a backup from a browser: the one request that may be larger than the console's limit. It goes to the disk as
it comes, and is kept only if it is a backup and came as a whole."""

from __future__ import annotations

import asyncio
from pathlib import Path

from litestar.exceptions import ClientException
from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from console.backups.folder import BackupFolder, Incoming, incoming
from console.backups.format import BackupError
from console.formats import gib
from console.parts import PageRequest

LIMIT_BYTES = 64 << 30
"""Of what is sent: years of launches. The disk is asked, too."""
FIELD = "file"
_WRITE_BYTES = 1 << 20


async def receive(request: PageRequest, folder: BackupFolder) -> Path:
    """Where the backup that the form sends is now. Raises BackupError."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get("boundary", "")
    if kind != "multipart/form-data" or not boundary:
        raise BackupError("No file was uploaded.", f"Send a form with a file in the field {FIELD!r}.")
    expected = _expected(request)
    with incoming(folder, expected) as received:
        try:
            await _take(request, PushMultipartParser(boundary, max_segment_count=8), received)
        except MultipartError as error:
            raise BackupError(f"The upload is incomplete: {error}.", "Upload the file again.", status=400) from error
        except ClientException as error:
            raise BackupError("The upload was interrupted.", "Upload the file again.", status=400) from error
        if not received.size:
            raise BackupError("No file was chosen.", "Choose a backup, then select Upload.")
        return await asyncio.to_thread(received.keep)


def _expected(request: PageRequest) -> int:
    """The bytes that the browser announces; 0 where it does not."""
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
        f"An upload can have at most {gib(LIMIT_BYTES)}.",
        "Copy the file into backups/ in the state folder instead; it will appear in the list.",
        status=413,
    )
