"""The one error of this room: a model folder that cannot be used, and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from appliance.protocol import Finding, Fix, Severity


class CheckpointError(ValueError):
    """`id` is stable and names the fault (`shard-missing`); `file` is where it was found; `field` is the key inside
    that file and `value` what stands there; `remedy` says what to do, `patch` and `command` as a program takes them."""

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
    ) -> None:
        super().__init__(f"{message} {remedy}")
        self.id = id
        self.message = message
        self.file = file
        self.field = field
        self.value = value
        self.evidence = evidence
        self.fix = Fix(text=remedy, patch=patch, command=command)

    def finding(self) -> Finding:
        evidence = ((str(self.file),) if self.file else ()) + self.evidence
        return Finding(
            id=self.id,
            severity=Severity.ERROR,
            message=self.message,
            field=self.field,
            value=shown(self.value),
            evidence=evidence,
            fix=self.fix,
        )


def shown(value: Any) -> Any:
    """The value as an error carries it: never more than a line, and writable as UTF-8 JSON."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < 1 << 53:
        return value
    text = ascii(value) if not isinstance(value, str) else value.encode("ascii", "backslashreplace").decode()
    return text if len(text) <= 80 else text[:77] + "..."
