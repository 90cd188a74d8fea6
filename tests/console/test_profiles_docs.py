"""docs/profiles.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from click.testing import CliRunner

from appliance.profile import document as documents
from appliance.profile.schema import SETTINGS
from console.profiles.profile_command import profile
from console.profiles.reference import tables

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "profiles.md").read_text(encoding="utf-8")


def test_every_setting_is_documented_as_its_row_says():
    """`python -m console.profiles.reference` prints the tables."""
    assert TEXT.endswith(tables())
    for setting in SETTINGS:
        assert f"| `{setting.key}` |" in TEXT


def test_the_example_is_a_profile():
    example = re.search(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    assert example is not None
    assert documents.check(documents.parse(example[1])) == []


def test_every_command_is_documented():
    help_text = CliRunner().invoke(profile, ["--help"]).output
    for name in profile.commands:
        assert name in help_text
        assert f"`ingot profile {name}" in TEXT


def headings(text):
    found = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", heading.lower()).strip().replace(" ", "-") for heading in found}


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        file, _, place = target.partition("#")
        text = (DOCS / file).read_text() if file else TEXT
        assert not place or place in headings(text), target
