"""What the bundle commands print of an error: sentences, in which names keep their spelling."""

from __future__ import annotations

import pytest

from appliance.bundle.telling import in_sentences


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("passwd is wrong; choose another", "passwd is wrong. Choose another."),
        ("key nope is wrong; `a b` lists them", "Key nope is wrong. `a b` lists them."),
        (
            "the disk is full: x.y; free some, or stop; try again",
            "The disk is full: x.y. Free some, or stop. Try again.",
        ),
        ("A whole sentence.", "A whole sentence."),
    ],
)
def test_an_error_is_printed_in_sentences(text: str, printed: str) -> None:
    assert in_sentences(text) == printed
