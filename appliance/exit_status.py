"""How a process ended, in words."""

from __future__ import annotations

import signal

EXIT_HINTS: dict[int, str] = {
    signal.SIGKILL: "nothing inside it can do that: most likely the kernel, out of memory, or a person",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGBUS: "a crash in native code, or a file that shrank while it was mapped",
    signal.SIGABRT: "native code gave up; its last words are in the log",
    signal.SIGILL: "native code uses an instruction that this processor does not have",
    signal.SIGTERM: "somebody asked it to end",
    signal.SIGINT: "somebody asked it to end",
}


def exit_in_words(status: int) -> str:
    """`status` as subprocess has it: negative for a signal."""
    if status >= 0:
        return f"exit status {status}"
    number = -status
    hint = EXIT_HINTS.get(number)
    return f"killed by {signal.Signals(number).name}" + (f" ({hint})" if hint else "")
