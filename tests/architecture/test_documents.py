"""What the documents point to is there."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_relative_link_and_picture_exists(document):
    for target in re.findall(r"\]\(([^)#\s]+)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name} points to {target}, which is not there"


def test_the_readme_names_make_targets_that_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\S+)", (ROOT / "README.md").read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"there is no make {target}"


def test_the_readme_names_every_command():
    (line,) = re.findall(r"^The `ingot` command: (.+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    named = set(re.findall(r"`([a-z]+)`", line))
    assert named == {point.name for point in metadata.entry_points(group="ingot.commands")}
