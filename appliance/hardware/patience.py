"""Waits for the driver no longer than is reasonable: after some faults of a GPU its calls never return, and nothing
that looks at the hardware may stand still with them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from appliance.hardware.nvml import NvmlUnavailable

T = TypeVar("T")

# Without persistence mode the driver wakes each GPU for every look, which takes seconds on a large machine.
PATIENCE_S: Final = 10.0


class Patience(Generic[T]):
    """Runs one call at a time in a thread of its own. One that does not return is left behind, and until it does no
    other is begun."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._left: threading.Thread | None = None

    def call(self, do: Callable[[], T]) -> T:
        """Raises NvmlUnavailable, of the kind "hangs", where `do` takes too long."""
        with self._lock:
            if self._left is not None and self._left.is_alive():
                raise self._hangs()
            self._left = None
            done: list[T] = []
            failed: list[Exception] = []
            thread = threading.Thread(target=_run, args=(do, done, failed), name="nvml", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads are to be had: then without one
                return do()
            thread.join(self._patience_s)
            if thread.is_alive():
                self._left = thread
                raise self._hangs()
        if failed:
            raise failed[0]
        return done[0]

    def _hangs(self) -> NvmlUnavailable:
        return NvmlUnavailable(f"The NVIDIA driver did not answer within {self._patience_s:g} s.", "hangs")


def _run(do: Callable[[], T], done: list[T], failed: list[Exception]) -> None:
    try:
        done.append(do())
    except Exception as error:  # noqa: BLE001 - raised again where it was called for
        failed.append(error)
