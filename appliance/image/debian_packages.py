"""Debian's packages in an image, from dpkg's own records."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path

from packageurl import PackageURL

from appliance.image.component import Component

# The short names of a machine-readable copyright file (Debian's DEP 5).
_LICENCE = re.compile(r"^License:[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)
_IS_DEP5 = re.compile(r"^Format:.*copyright-format", re.MULTILINE)


def debian_packages(image: Path) -> Iterator[Component]:
    release = _release(image)
    for paragraph in (image / "var/lib/dpkg/status").read_text().split("\n\n"):
        fields = HeaderParser().parsestr(paragraph)
        if "Package" not in fields or not fields["Status"].endswith(" installed"):
            continue
        name = fields["Package"]
        copyright_file = _within(image, Path("usr/share/doc", name, "copyright"))
        known = copyright_file is not None
        yield Component(
            url=PackageURL(
                "deb", "debian", name, fields["Version"], {"arch": fields["Architecture"], "distro": release}
            ),
            licences=_licences(copyright_file.read_text(errors="replace")) if copyright_file else (),
            texts={"copyright": copyright_file} if known and copyright_file else {},
            summary=fields["Description"].splitlines()[0],
        )


def common_licences(image: Path) -> dict[str, Path]:
    """The full licence texts that Debian's copyright files refer to, by name."""
    folder = image / "usr/share/common-licenses"
    return {path.name: path for path in sorted(folder.iterdir()) if path.is_file()}


def _licences(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_LICENCE.findall(text))) if _IS_DEP5.search(text) else ()


def _release(image: Path) -> str:
    found = dict(line.split("=", 1) for line in (image / "usr/lib/os-release").read_text().splitlines() if "=" in line)
    return f"{found['ID']}-{found['VERSION_ID']}".replace('"', "")


def _within(image: Path, path: Path) -> Path | None:
    """The file for `path` inside the image, where links are absolute; None if it does not exist."""
    place = image
    for part in path.parts:
        place = place / part
        if place.is_symlink():
            target = place.readlink()
            place = image / target.relative_to("/") if target.is_absolute() else place.parent / target
    return place if place.is_file() else None
