"""docs/preflight.md describes every check: its table is written from the registry.

`python -m tests.preflight.test_preflight_docs` writes it.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from appliance.preflight.registry import CHECKS, Check

DOCUMENT = Path(__file__).parents[2] / "docs" / "preflight.md"
BEGIN = "<!-- This table is written by"
END = "<!-- The table ends here. -->"


def row(check: Check) -> str:
    """What it finds is the first paragraph of its file."""
    words = " ".join((inspect.getdoc(inspect.getmodule(check.run)) or "").split("\n\n")[0].split())
    only = [f"{check.engines[0]} only"] if len(check.engines) == 1 else []
    where = ", ".join(only + (["local"] if check.local else []))
    return f"| `{check.id}` | {words}{f' *({where})*' if where else ''} | {check.remedy} |"


def table() -> str:
    lines = []
    for group in dict.fromkeys(check.group for check in CHECKS):
        lines += [f"\n### {group}\n", "| check | makes sure that | fix |", "| --- | --- | --- |"]
        lines += [row(check) for check in CHECKS if check.group == group]
    return "\n".join(lines)


def with_table(text: str) -> str:
    begin = text.index("\n", text.index(BEGIN)) + 1
    return f"{text[:begin]}{table()}\n\n{text[text.index(END) :]}"


def test_the_table_is_of_the_registry() -> None:
    """A new check, or other words of one, need `python -m tests.preflight.test_preflight_docs`."""
    text = DOCUMENT.read_text()
    assert text == with_table(text)


def test_every_check_says_what_it_finds_and_how_to_fix_it() -> None:
    for check in CHECKS:
        module = inspect.getmodule(check.run)
        assert module is not None
        assert module.__doc__
        assert check.remedy
        assert check.group
        assert check.title


if __name__ == "__main__":
    DOCUMENT.write_text(with_table(DOCUMENT.read_text()))
    sys.stdout.write(f"{DOCUMENT} is written.\n")
