"""The browser libraries bundled with the console, from the names of their files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from packageurl import PackageURL

from appliance.image.component import Component

VENDOR = "opt/*/lib/python3*/site-packages/console/static/vendor"
# The npm packages they come from, and their licences as SPDX identifiers.
_KNOWN = {
    "htmx": ("htmx.org", "0BSD"),
    "idiomorph": ("idiomorph", "0BSD"),
    "lucide": ("lucide-static", "ISC"),
    "uplot": ("uplot", "MIT"),
}
_NAMED = re.compile(r"(?P<name>[a-z][a-z-]*[a-z])-(?P<version>\d+\.\d+\.\d+)(?=\.|$)")


def web_files(image: Path) -> Iterator[Component]:
    """One for each name and version.

    Raises:
        ValueError: there is an unknown file.
    """
    for vendor in sorted(image.glob(VENDOR)):
        texts: dict[tuple[str, str], dict[str, Path]] = {}
        for path in sorted(vendor.iterdir()):
            named = _NAMED.match(path.name)
            if named is None or named["name"] not in _KNOWN:
                raise ValueError(f"{path.name} in console/static/vendor is not known to {__name__}: add a row for it.")
            found = texts.setdefault((named["name"], named["version"]), {})
            for file in [path] if path.is_file() else sorted(path.rglob("*")):
                if "LICENSE" in file.name.upper():
                    found[file.name] = file
        for (name, version), files in texts.items():
            package, licence = _KNOWN[name]
            yield Component(url=PackageURL("npm", None, package, version), licences=(licence,), texts=files)
