"""Text to plain data: what YAML would change in silence is refused, with its line."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.profile import text
from appliance.profile.document import parse, write
from appliance.profile.schema import ProfileError


def refusal(source: str | bytes) -> str:
    with pytest.raises(ProfileError) as caught:
        parse(source)
    (problem,) = caught.value.problems
    assert problem.remedy
    return problem.message


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("", "empty"),
        ("# nothing\n", "empty"),
        ("- name\n", "a list"),
        ("name", "plain text"),
        ("42", "a number"),
        ("name: a\nengine: vllm\nname: b\n", "in line 1 and again in line 3"),
        ('{"name": "a", "name": "b"}', "'name'"),
        ("name: a\n\tengine: vllm\n", "line 2"),
        ("a: &x 1\nb: *x\n", "'x'"),
        ("a: [1, 2\n", "line"),
        ("a: !!python/object/apply:os.system [ls]\n", "tag"),
        ("a: !!timestamp 2024-01-01\n", "tag"),
        ("a: !!binary aGk=\n", "tag"),
        ("--- {a: 1}\n--- {b: 2}\n", "line 2"),
        ("1: a\n", "not text: 1"),
        ("true: a\n", "not text: True"),
        ("? [a]\n: b\n", "a list or mapping"),
        ("a: .nan\n", "finite"),
        ("a: -.inf\n", "finite"),
        ("a: 1e999\n", "too large"),
        ('{"a": NaN}', "not a number"),
        ('{"a": -Infinity}', "not a number"),
        ('{"a": 1e999}', "too large"),
        ("a: " + "9" * 5000, "digits"),
        ('{"a": ' + "9" * 5000 + "}", "digits"),
        ('{"a": "\\ud800"}', "surrogate"),
        ('a: "\\ud800"', ""),
        ("a: \x00", "character"),
        ('{"a" 1}', "line 1 column 6"),
        ("a: " + "[" * 40 + "]" * 40, "deep"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "deep"),
        ("[" * 100_000, "deep"),
        ("a: b\n" * 100_000, "bytes"),
        (b"name: \xff", "byte 6 is 0xff"),
    ],
)
def test_refused_text_says_what_and_where(source: str | bytes, said: str) -> None:
    """Every text that is no single plain mapping is refused in words, never with a traceback."""
    assert said in refusal(source)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("a: 2024-01-01", "2024-01-01"),
        ("a: no", "no"),
        ("a: on", "on"),
        ("a: 012", "012"),
        ("a: 0x1F", "0x1F"),
        ("a: 1_000", "1_000"),
        ("a: 1:30", "1:30"),
        ("a: 12e03", 12e3),
        ("a: '12'", "12"),
        ("a: 12", 12),
        ("a: -0.5", -0.5),
        ("a: true", True),
        ("a: ~", None),
        ("a:", None),
        ("a: !!str 12", "12"),
        ("a: |\n  two\n  lines\n", "two\nlines\n"),
        ("{a: 1}", 1),
        ('{"a": 1}', 1),
        ('\ufeff{"a": 1}', 1),
        ("{'a': 1}", 1),
        ('{"a": 1,}', 1),
    ],
)
def test_plain_values_mean_what_they_look_like(source: str, value: object) -> None:
    """YAML 1.1's surprises (dates, sexagesimals, octals, `no`) stay text; numbers and booleans are what they look."""
    found = parse(source)["a"]
    assert found == value
    assert type(found) is type(value)


def test_a_tab_is_named_in_the_remedy() -> None:
    """Indenting with tabs gets the advice to use spaces."""
    with pytest.raises(ProfileError, match="Indent with spaces"):
        parse("model:\n\tpath: a\n")


def test_the_largest_text_is_read_fast() -> None:
    """A document at the limit of size cannot hold up the page that asks for it."""
    lines = "".join(f"key-{i}: {{a: [1, 2, 3], b: text}}\n" for i in range(6000))
    source = lines[: text.MAX_BYTES - 10].rsplit("\n", 1)[0]
    started = time.process_time()
    parse(source)
    assert time.process_time() - started < 3


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=10), PLAIN, max_size=5)


@given(DOCUMENTS)
def test_json_round_trip(document: dict[str, Any]) -> None:
    """What a program writes as JSON is read as it was."""
    assert text.read(json.dumps(document)) == document if document else True


@given(st.dictionaries(st.from_regex(r"[a-z-]{1,8}", fullmatch=True), PLAIN, min_size=1, max_size=4))
def test_yaml_round_trip(document: dict[str, Any]) -> None:
    """What is written is read as it was, with quotes where our plain scalars differ from YAML 1.1's."""
    assert text.read(write(document)) == document


def answered(source: str | bytes) -> bool:
    """True for a text that is read, or refused in words; any other exception is a fault."""
    try:
        assert isinstance(parse(source), dict)
    except ProfileError as error:
        return bool(str(error))
    return True


@settings(max_examples=400)
@given(st.text(max_size=60) | st.from_regex(r"[-{}\[\]:,&*!|>'\"%@` \n\ta-c0-9.#?~]{0,40}", fullmatch=True))
def test_any_text_is_read_or_refused(source: str) -> None:
    """No text makes anything but a document or a ProfileError."""
    assert answered(source)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(source: bytes) -> None:
    """Nor do bytes."""
    assert answered(source)
