"""The one error of this room: a model folder that cannot be used, and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from appliance.profile.shown import plain, shown
from appliance.protocol import Finding, Fix, Severity


class CheckpointError(ValueError):
    """`id` is stable and names the fault (`shard-missing`); `file` is where it was found; `field` is the key inside
    that file and `value` what stands there; `remedy` says what to do, `patch`, `command` and `options` as a program
    takes them."""

    def __init__(
        self,
        id: str,
        message: str,
        *,
        remedy: str,
        file: Path | None = None,
        field: str | None = None,
        value: Any = None,
        evidence: tuple[str, ...] = (),
        patch: dict[str, Any] | None = None,
        command: str | None = None,
        options: tuple[dict[str, Any], ...] = (),
    ) -> None:
        super().__init__(f"{message} {remedy}")
        self.id = id
        self.message = message
        self.file = file
        self.field = field
        self.value = value
        self.evidence = evidence
        self.fix = Fix(text=remedy, patch=patch, command=command, options=options)

    def finding(self) -> Finding:
        evidence = ((str(self.file),) if self.file else ()) + self.evidence
        return Finding(
            id=self.id,
            severity=Severity.ERROR,
            message=plain(self.message),
            field=plain(self.field) if self.field is not None else None,
            value=shown(self.value),
            evidence=tuple(map(plain, evidence)),
            fix=self.fix,
        )
