"""What is wrong with a cast, told so that it can be mended."""

from __future__ import annotations


class CastError(Exception):
    """`id` is stable and becomes a finding's; `remedy` says what to do, and `command` does it, where one can. Raise it
    `from None` where an engine may: a diagnosis goes by the first exception of a chain."""

    def __init__(self, id: str, message: str, remedy: str, command: str | None = None) -> None:
        super().__init__(f"{message} {remedy}" + (f" Command: {command}" if command else ""))
        self.id, self.message, self.remedy, self.command = id, message, remedy, command
