"""The scanner agrees with the standard library on what JSON is, and knows where a value ends."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.serving.parsers.json_scanner import JsonScanner, is_json

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
near_json = st.lists(
    st.sampled_from([*'{}[]:,"\\ \n-+.eE019tfnu', "true", "null", '"a"', "\\u00e9", "\t", "é", "1.5", '{"a":', "[1,"]),
    max_size=12,
).map("".join)


def is_json_by_the_library(text: str) -> bool:
    try:
        json.loads(text, parse_constant=lambda name: pytest.fail(name) if name else None)
    except ValueError:
        return False
    return True


@given(value=values, ascii_=st.booleans(), indent=st.sampled_from([None, 2]))
def test_what_the_library_writes_is_json(value: object, ascii_: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_, indent=indent)
    assert is_json(text)


@given(text=near_json)
def test_what_is_nearly_json_is_judged_as_the_library_does(text: str) -> None:
    assert is_json(text) == is_json_by_the_library(text)


@given(value=values.filter(lambda value: isinstance(value, dict | list | str)), rest=st.text(), size=st.integers(1, 9))
def test_a_value_ends_where_it_ends(value: object, rest: str, size: int) -> None:
    text = json.dumps(value)
    scanner, read = JsonScanner(), 0
    whole = text + rest
    for at in range(0, len(whole), size):
        read += scanner.feed(whole[at : at + size])
        if scanner.done:
            break
    assert scanner.done
    assert not scanner.broken
    assert read == len(text)


@pytest.mark.parametrize(
    ("text", "stop"),
    [
        ('{"a" 1}', 5),
        ("[1 2]", 3),
        ("[1,]", 3),
        ("{,", 1),
        ("tru,", 3),
        ('"\n"', 1),
        ('"\\x"', 2),
        ("]", 0),
        ("[}", 1),
        ("-a", 1),
    ],
)
def test_it_stops_where_it_is_no_longer_json(text: str, stop: int) -> None:
    scanner = JsonScanner()
    assert scanner.feed(text) == stop
    assert scanner.broken


@pytest.mark.parametrize(
    ("text", "done"), [("12", True), ("1.5e3", True), ("-", False), ("1.", False), ("[1", False), ("", False)]
)
def test_the_end_of_the_text_ends_a_number(text: str, done: bool) -> None:
    scanner = JsonScanner()
    assert scanner.feed(text) == len(text)
    assert not scanner.done
    scanner.finish()
    assert scanner.done is done
    assert scanner.broken is not done


def test_a_number_ends_before_what_follows() -> None:
    scanner = JsonScanner()
    assert scanner.feed("-1.5e+3,") == 7
    assert scanner.done
