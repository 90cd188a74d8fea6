"""Errors about casts, each with its remedy."""

from __future__ import annotations


class CastError(Exception):
    """`id` is stable and becomes the finding's id; `remedy` says what to do, and `command` does it, if one can. Where
    an engine may raise it, do so `from None`: a diagnosis reads the first exception of a chain."""

    def __init__(self, id: str, message: str, remedy: str, command: str | None = None) -> None:
        super().__init__(f"{message} {remedy}" + (f" Command: {command}" if command else ""))
        self.id, self.message, self.remedy, self.command = id, message, remedy, command
