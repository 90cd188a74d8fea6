"""Files named on the command line. Folders, devices and sockets are refused; a pipe is read until its writers close
it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

PIECE_BYTES = 1 << 20
REFUSED = {
    stat.S_IFDIR: "it is a folder",
    stat.S_IFCHR: "it is a device",
    stat.S_IFBLK: "it is a device",
    stat.S_IFSOCK: "it is a socket",
}


def is_pipe(path: Path) -> bool:
    """Raises OSError for what is neither a pipe nor a regular file."""
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind in REFUSED:
        raise OSError(errno.EINVAL, REFUSED[kind], str(path))
    return kind == stat.S_IFIFO


def pieces(path: Path) -> Iterator[bytes]:
    """The content of a regular file, or of a pipe that somebody writes to, as `<(docker logs engine)` is. Raises
    OSError for anything else."""
    pipe = is_pipe(path)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # without waiting for a writer
    try:
        try:
            piece = os.read(handle, PIECE_BYTES)
        except BlockingIOError:  # a writer that has written nothing yet
            piece = None
        if pipe and piece == b"":
            raise OSError(errno.EINVAL, "it is a pipe, and nothing writes to it", str(path))
        os.set_blocking(handle, True)
        if piece:
            yield piece
        while piece := os.read(handle, PIECE_BYTES):
            yield piece
    finally:
        os.close(handle)


def read_given(path: Path, max_bytes: int) -> bytes:
    """The content; of a longer one its beginning, which is longer than `max_bytes` too. Raises OSError."""
    content = b""
    for piece in pieces(path):
        content += piece
        if len(content) > max_bytes:
            break
    return content
