"""What can stand in the way of a request, by its code."""

from __future__ import annotations

from console.refusals import Refusal

CONFLICTS = {
    "activation-running": "An activation is in progress",
    "already-importing": "This model is already being imported",
    "backup-check-running": "A backup is being checked",
    "backup-running": "A backup is being created",
    "benchmark-running": "A benchmark is running",
    "cancelled": "Cancelled",
    "cannot-import": "This cannot be imported",
    "engine-busy": "The engine is busy",
    "engine-not-ready": "The engine is not ready",
    "file-exists": "That file already exists",
    "import-ended": "This import has already ended",
    "import-queue-full": "Too many imports are waiting",
    "import-running": "This import is still running",
    "key-unknown": "This key is not trusted",
    "key-untrusted": "The signing key is not trusted",
    "launch-current": "This launch is the current one",
    "leftover-busy": "The partial import could not be deleted",
    "name-taken": "That name is taken",
    "newer-revision": "There is a newer revision",
    "nothing-to-back-up": "There is nothing to back up",
    "nothing-to-compare": "There is nothing to compare",
    "profile-active": "This profile is active",
    "requests-running": "Requests are running",
    "restore-running": "A restore is in progress",
    "set-up-done": "The set-up code has been used",
    "state-busy": "The state keeps changing",
    "too-many-backups": "Too many backups",
    "too-many-keys": "Too many API keys",
    "unsigned": "This bundle is not signed",
}
"""The title that a person reads, by the code that a program reads."""


class Conflict(Refusal):
    """Refused with 409 because of how things stand now: `code`, a row of CONFLICTS, says what is in the way."""

    code: str

    def __init__(
        self, code: str, message: str, remedy: str = "", *, field: str | None = None, value: object = None
    ) -> None:
        assert code in CONFLICTS, f"{code!r} has no title"
        super().__init__(409, message, remedy, field=field, value=value)
        self.code = code

    @property
    def title(self) -> str:
        return CONFLICTS[self.code]
