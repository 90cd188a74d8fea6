"""Why a backup could not be made, read or restored."""

from __future__ import annotations


class BackupError(Exception):
    """A backup could not be made, read or restored. `code` says why, for programs; `status` is the HTTP status that
    fits, and with 409 the code is a row of `console.conflicts.CONFLICTS`."""

    def __init__(self, code: str, message: str, remedy: str, *, status: int = 422) -> None:
        super().__init__(f"{message} {remedy}")
        self.code = code
        self.message = message
        self.remedy = remedy
        self.status = status
