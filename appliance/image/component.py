"""A component of an image, such as a package or library."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from packageurl import PackageURL


@dataclass(frozen=True)
class Component:
    """`licences` are SPDX identifiers or expressions if the author used them, otherwise the author's words; `texts`
    maps file names to licence files."""

    url: PackageURL
    licences: tuple[str, ...]
    texts: dict[str, Path]
    summary: str = ""

    @property
    def folder(self) -> Path:
        """The subfolder for its licences."""
        return Path(self.url.type, f"{self.url.name}-{self.url.version}")
