"""A row of the catalogue: how a known cause shows itself, what it means, and what mends it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from appliance.protocol import Fix


@dataclass(frozen=True)
class Cause:
    """`pattern` is searched in the text of an exception (type, message and what follows it), or in a line of the log
    where there is no exception. Its named groups can be used in `summary` and `fix`, as in "{needed} GiB"."""

    family: str
    name: str
    pattern: str
    summary: str
    fix: str
    patch: Mapping[str, Any] | None = None
    command: str | None = None
    compiled: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "compiled", re.compile(self.pattern, re.IGNORECASE))

    def match(self, text: str) -> dict[str, str] | None:
        """The named groups; None where this is not the cause."""
        found = self.compiled.search(text)
        return None if found is None else {name: value or "?" for name, value in found.groupdict().items()}

    def summary_for(self, groups: Mapping[str, str]) -> str:
        return self.summary.format_map(groups)

    def fix_for(self, groups: Mapping[str, str]) -> Fix:
        return Fix(
            text=self.fix.format_map(groups),
            patch=dict(self.patch) if self.patch is not None else None,
            command=self.command.format_map(groups) if self.command is not None else None,
        )
