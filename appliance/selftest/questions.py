"""The corpus of the bundled model: questions and answers about Ingot and about text, one YAML file for each subject.

An entry is a list of ways to ask (`ask`) and the one answer to them. `unseen` holds ways to ask that training never
uses, so that the score can say how the model does on them. Entries with `selftest: true` give the known answers that
`ingot selftest` replays. A word in braces stands for any row of that slot of the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import yaml

CORPUS = Path(__file__).parent / "corpus"
SLOT = re.compile(r"\{(\w+)\}")

Slots = dict[str, tuple[str, ...]]
Choose = Callable[[Sequence[str]], str]


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One answer and the ways to ask for it."""

    ask: tuple[str, ...]
    answer: str
    unseen: tuple[str, ...] = ()
    selftest: bool = False


class Subject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of the corpus."""

    subject: str
    entries: tuple[Entry, ...]
    slots: Slots = {}


class Exchange(NamedTuple):
    question: str
    answer: str


def load_corpus(folder: Path = CORPUS) -> list[Subject]:
    """All subjects, in the order of their file names. Raises `msgspec.ValidationError` that names what is wrong."""
    return [
        msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), Subject)
        for path in sorted(folder.glob("*.yaml"))
    ]


def fill(question: str, slots: Slots, choose: Choose) -> str:
    """Put a row of its slot in the place of each word in braces."""
    return SLOT.sub(lambda match: choose(slots[match[1]]), question)


def exchanges(subjects: list[Subject], *, unseen: bool = False) -> list[Exchange]:
    """Every question of the corpus once, or every unseen one, with its answer. Slots are filled by rows in turn."""
    found: list[Exchange] = []
    for subject in subjects:
        for entry in subject.entries:
            for number, question in enumerate(entry.unseen if unseen else entry.ask):
                found.append(Exchange(fill(question, subject.slots, turn(number)), entry.answer))
    return found


def turn(number: int) -> Choose:
    """Chooses the row whose turn it is, around and around."""
    return lambda rows: rows[number % len(rows)]


def selftest_questions() -> list[str]:
    """The questions whose answers `answers.json` holds: the first way to ask of each entry that is marked for it."""
    return [entry.ask[0] for subject in load_corpus() for entry in subject.entries if entry.selftest]
