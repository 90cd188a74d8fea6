"""Python packages in an image, from the metadata pip installed with them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

from packageurl import PackageURL

from appliance.image.component import Component

_IS_LICENCE = re.compile(r"licen[cs]e|copying|notice|copyright|authors|eula", re.IGNORECASE)
# An SPDX expression is short; some packages put the whole licence text into this field.
_LONGEST = 64


def python_packages(image: Path, common: dict[str, Path]) -> Iterator[Component]:
    """Of every environment below /opt. `common` has the texts of well-known licences, for a package without its own."""
    for folder in sorted(image.glob("opt/*/lib/python3*/site-packages/*.dist-info")):
        distribution = PathDistribution(folder)
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
        licences = tuple(_licences(distribution))
        own = {
            path.relative_to(folder).as_posix().replace("/", "_"): path
            for path in sorted(folder.rglob("*"))
            if path.is_file() and (_IS_LICENCE.search(path.name) or "licenses" in path.relative_to(folder).parts[:1])
        }
        texts = own or {licence: common[_COMMON[licence]] for licence in licences if _COMMON.get(licence) in common}
        yield Component(
            url=PackageURL("pypi", None, name, distribution.version),
            licences=licences,
            texts=texts,
            summary=_field(distribution, "Summary"),
        )


# Authors' names for licences -> Debian's name of the text.
_COMMON = {
    "Apache-2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "BSD": "BSD",
    "BSD License": "BSD",
    "BSD-3-Clause": "BSD",
}


def _licences(distribution: Distribution) -> Iterator[str]:
    """The SPDX expression if there is one, else the classifiers, else the old free text."""
    expression = _field(distribution, "License-Expression")
    if expression:
        yield expression
        return
    classified = [
        words[-1]
        for words in (row.split(" :: ") for row in distribution.metadata.get_all("Classifier", []))
        if words[0] == "License" and words[-1] != "OSI Approved"
    ]
    if classified:
        yield from dict.fromkeys(classified)
        return
    said = _field(distribution, "License").strip()
    if said and said != "UNKNOWN" and len(said) <= _LONGEST and "\n" not in said:
        yield said


def _field(distribution: Distribution, name: str) -> str:
    return next(iter(distribution.metadata.get_all(name, [])), "")
