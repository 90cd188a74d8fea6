"""Who did something, in the words of pages and messages: the database keeps accounts' names, and two others."""

from __future__ import annotations

from typing import Final

COMMAND_LINE: Final = "ingot"
"""Stored for what a command of this machine did."""
FIRST_START: Final = "Ingot"
"""Stored for what a new state folder begins with."""

_SAID: Final = {"": "", COMMAND_LINE: "from the command line", FIRST_START: "at the first start"}

RESERVED: Final = frozenset({COMMAND_LINE, FIRST_START})
"""Names that no account may have: its work would be credited to the machine."""


def by(author: str) -> str:
    """`by admin`, `from the command line`; empty if it is not known who."""
    return _SAID.get(author, f"by {author}")


def done_by(what: str, author: str) -> str:
    """`Stopped by admin`."""
    return f"{what} {by(author)}".rstrip()
