"""The terminal of `ingot up`, which the appliance outlives: a pipe whose reader has gone, or a file on a full disk."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import IO, Any, cast

from rich.console import Console


class LossyOutput:
    """A text stream whose writes never fail. What cannot be written is left out, and standard error told once."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._told = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._lost(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lost(error)

    def _lost(self, error: OSError) -> None:
        self._drop_buffered()
        if not self._told:
            self._told = True
            with contextlib.suppress(OSError):  # it may be the same pipe or file
                sys.stderr.write(f"Standard output cannot be written: {error.strerror}. The appliance runs on.\n")

    def _drop_buffered(self) -> None:
        """Else the next write would fail for it too, and Python's exit."""
        output = self._stream.fileno()
        kept, nowhere = os.dup(output), os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, output)
            self._stream.flush()
        finally:
            os.dup2(kept, output)
            os.close(kept)
            os.close(nowhere)


def standard_output() -> Console:
    return Console(file=cast("IO[str]", LossyOutput(sys.stdout)), highlight=False)
