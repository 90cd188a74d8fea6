"""The corpus that the bundled model is made from: what its author must keep."""

from __future__ import annotations

import random

import pytest

from appliance.profile.document import check, load, parse
from appliance.selftest.questions import (
    CORPUS,
    SLOT,
    Subject,
    exchanges,
    fill,
    load_corpus,
    selftest_questions,
)
from appliance.selftest.variation import vary

LONGEST_ANSWER = 420  # characters: the model answers shortly
LONGEST_PARAGRAPH_SENTENCES = 4


@pytest.fixture(scope="module")
def corpus() -> list[Subject]:
    return load_corpus()


def test_no_question_has_two_answers(corpus):
    """The same question, whatever its capital letters and marks, has one answer; unseen ones are not among the seen."""
    answers: dict[str, str] = {}
    for subject in corpus:
        for entry in subject.entries:
            for question in entry.ask:
                plain = question.lower().strip(" .?!")
                assert answers.setdefault(plain, entry.answer) == entry.answer, question
    assert not {exchange.question for exchange in exchanges(corpus)} & {
        exchange.question for exchange in exchanges(corpus, unseen=True)
    }


def test_answers_are_short(corpus):
    """Nobody reads a page in a first chat; code and lists count by their characters only."""
    for exchange in exchanges(corpus):
        assert len(exchange.answer) <= LONGEST_ANSWER, exchange.question
        if "\n" not in exchange.answer:
            sentences = exchange.answer.count(". ") + exchange.answer.count("? ") + 1
            assert sentences <= LONGEST_PARAGRAPH_SENTENCES + 1, exchange.answer


def test_text_is_plain(corpus):
    """ASCII only, no double spaces outside code, no marketing marks; what begins a code span ends it."""
    for exchange in [*exchanges(corpus), *exchanges(corpus, unseen=True)]:
        assert exchange.question.isascii()
        assert exchange.answer.isascii()
        assert "  " not in exchange.answer, exchange.answer
        assert "!" not in exchange.answer
        assert exchange.answer.count("`") % 2 == 0, exchange.answer
        assert exchange.answer == exchange.answer.strip()


def test_slots_are_named_and_used(corpus):
    """Every word in braces of a question is a slot of its file, and every slot is used."""
    for subject in corpus:
        asked = [question for entry in subject.entries for question in (*entry.ask, *entry.unseen)]
        assert {name for question in asked for name in SLOT.findall(question)} == set(subject.slots)


def test_there_is_enough(corpus):
    """At least 250 answers, each with three ways or more to ask for it."""
    entries = [entry for subject in corpus for entry in subject.entries]
    assert len(entries) >= 250
    assert all(len(entry.ask) >= 3 for entry in entries)
    assert len({entry.answer for entry in entries}) == len(entries)


def test_selftest_questions_are_whole(corpus):
    """A dozen questions for the known answers, without slots, from several subjects."""
    questions = selftest_questions()
    assert 10 <= len(questions) <= 16
    assert not any(SLOT.search(question) for question in questions)


def test_unknown_field_is_refused(tmp_path):
    """A misspelt field in a corpus file is an error, not a silently shorter corpus."""
    (tmp_path / "a.yaml").write_text("subject: A\nentries: [{ask: [Why], anwser: So.}]\n")
    with pytest.raises(ValueError, match="anwser"):
        load_corpus(tmp_path)


def test_variations_repeat_and_differ(corpus):
    """A seed gives the same variations again; a question has many, and none is empty."""
    question = "How do I import a model?"
    first = [vary(question, random.Random(seed)) for seed in range(300)]
    assert first == [vary(question, random.Random(seed)) for seed in range(300)]
    assert len(set(first)) > 100
    for exchange in exchanges(corpus):
        assert vary(exchange.question, random.Random(1)).strip()


def test_slots_are_filled():
    assert fill("{a} and {a} or {b}", {"a": ("x",), "b": ("y",)}, lambda rows: rows[0]) == "x and x or y"


def test_profile_of_the_bundled_model():
    """profile.yaml is a valid profile of the model that is there."""
    document = parse((CORPUS.parent / "profile.yaml").read_text())
    assert check(document) == []
    profile = load(document)
    assert (profile.name, profile.served_model_name, profile.model.path) == ("ingot-guide", "ingot-guide", "bundled")
