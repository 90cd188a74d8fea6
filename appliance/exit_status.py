"""How a process ended, in words."""

from __future__ import annotations

import signal

EXIT_HINTS: dict[int, str] = {
    signal.SIGKILL: "probably by the kernel because memory ran out, or by a person",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGBUS: "a crash in native code, or a mapped file that shrank",
    signal.SIGABRT: "native code aborted; its last message is in the log",
    signal.SIGILL: "an instruction that this CPU does not support",
    signal.SIGTERM: "it was asked to stop",
    signal.SIGINT: "it was asked to stop",
}


def exit_in_words(status: int) -> str:
    """`status` as subprocess has it: negative for a signal."""
    if status >= 0:
        return f"exit status {status}"
    number = -status
    hint = EXIT_HINTS.get(number)
    return f"killed by {signal.Signals(number).name}" + (f" ({hint})" if hint else "")
