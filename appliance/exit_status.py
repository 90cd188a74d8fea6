"""How a process ended, in words."""

from __future__ import annotations

import signal

# Said where nobody has looked for the kernel's record that memory ran out. Of a launch, its diagnosis says more.
KILLED_BY = "by the kernel because memory ran out, by a service manager, or by a person"
EXIT_HINTS: dict[int, str] = {
    signal.SIGSEGV: "a crash in native code",
    signal.SIGBUS: "a crash in native code, or a mapped file that shrank",
    signal.SIGABRT: "native code aborted; its last message is in the log",
    signal.SIGILL: "an instruction that this CPU does not support",
    signal.SIGTERM: "it was asked to stop",
    signal.SIGINT: "it was asked to stop",
}


def how_it_ended(status: int) -> str:
    """`status` as subprocess has it: negative for a signal."""
    return f"exit status {status}" if status >= 0 else f"killed by {signal_name(-status)}"


def exit_in_words(status: int) -> str:
    """The same, with what usually causes it."""
    hint = EXIT_HINTS.get(-status)
    return how_it_ended(status) + (f" ({hint})" if hint else "")


def signal_name(number: int) -> str:
    """Most real-time signals have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
