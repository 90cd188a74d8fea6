"""`python -m appliance.image.requirements`: the packages of pyproject.toml as one file for each layer of an image.

Files that stay the same when anything else in pyproject.toml changes, so that a layer is not installed again. Runs on
the bare Python of the base image.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any


def layers(document: dict[str, Any]) -> dict[str, list[str]]:
    """The name of a file -> its lines: what builds Ingot, what the console and the engine take of its dependencies, and
    each list of `[tool.ingot.image]` that is not a choice among those.

    Raises:
        ValueError: a package is named there that Ingot does not depend on.
    """
    project = document["project"]
    lists: dict[str, list[str]] = dict(document["tool"]["ingot"]["image"])
    engine_only = lists.pop("engine-only")
    strangers = sorted(set(engine_only) - set(map(name, project["dependencies"])))
    if strangers:
        raise ValueError(
            f"pyproject.toml: engine-only in [tool.ingot.image] names {', '.join(strangers)}, which Ingot does not "
            "depend on. Remove it from the list."
        )
    needed = {row: name(row) in engine_only for row in project["dependencies"]}
    return lists | {
        "build": document["build-system"]["requires"],
        "inventory": project["optional-dependencies"]["image"],
        "console": [row for row, is_engines in needed.items() if not is_engines],
        "engine": [row for row, is_engines in needed.items() if is_engines],
    }


def name(requirement: str) -> str:
    """That of the distribution: `sqlalchemy` of `sqlalchemy[asyncio]>=2.1`."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None, requirement
    return match[0].lower()


def main() -> None:
    document = tomllib.loads(Path("pyproject.toml").read_text())
    for layer, lines in layers(document).items():
        Path(f"{layer}.txt").write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
