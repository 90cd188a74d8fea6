"""Stop strings are found wherever the text is cut, and no part of one gets out before its time."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from appliance.serving.stop_strings import StopStrings

letters = st.text(alphabet="ab<|", max_size=40)
stops = st.lists(st.text(alphabet="ab<|", min_size=1, max_size=5), max_size=4)


def letter_by_letter(text: str, stops: list[str]) -> tuple[str, str | None]:
    """What is promised, in the plainest way: stop at the first letter that completes a stop string."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(text=letters, stops=stops, cuts=st.lists(st.integers(0, 40), max_size=10))
def test_the_answer_does_not_depend_on_the_pieces(text: str, stops: list[str], cuts: list[int]) -> None:
    """Token boundaries may be anywhere."""
    expected, matched = letter_by_letter(text, stops)
    found = StopStrings(stops)
    out = ""
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    for begin, end in itertools.pairwise(edges):
        out += found.push(text[begin:end])
    assert found.matched == matched
    assert out + found.finish() == expected


@given(text=letters, stops=stops, more=letters)
def test_what_was_sent_stays_right_whatever_comes(text: str, stops: list[str], more: str) -> None:
    """At every moment of a stream the text sent is the beginning of the answer, for any continuation."""
    found = StopStrings(stops)
    sent = "".join(found.push(letter) for letter in text)
    answer, _ = letter_by_letter(text + more, stops)
    assert answer.startswith(sent)


def test_nothing_comes_after_a_match() -> None:
    """Tokens that were already on their way are dropped."""
    found = StopStrings(["stop"])
    assert found.push("go st") == "go "
    assert found.push("op now") == ""
    assert found.push("more") == ""
    assert found.finish() == ""
    assert found.matched == "stop"
