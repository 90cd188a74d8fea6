"""Why a backup could not be made, read or restored."""

from __future__ import annotations

from console.conflicts import CONFLICTS
from console.refusals import Refusal


class BackupError(Refusal):
    """A backup could not be made, read or restored. `code` says why, for programs; with status 409 it is a row of
    `console.conflicts.CONFLICTS`."""

    code: str

    def __init__(self, code: str, message: str, remedy: str, *, status: int = 422) -> None:
        super().__init__(status, message, remedy)
        self.code = code

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}"

    @property
    def title(self) -> str:
        return CONFLICTS[self.code] if self.status == 409 else super().title
