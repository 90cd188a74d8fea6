"""One thing that an image holds, whoever made it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from packageurl import PackageURL


@dataclass(frozen=True)
class Component:
    """`licences` are SPDX identifiers or expressions where its author wrote them so, else the author's words; `texts`
    are the files that hold them, by the name that each gets."""

    url: PackageURL
    licences: tuple[str, ...]
    texts: dict[str, Path]
    summary: str = ""

    @property
    def folder(self) -> Path:
        """Where its licences lie below that of all of them."""
        return Path(self.url.type, f"{self.url.name}-{self.url.version}")
