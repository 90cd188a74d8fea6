"""No pattern that reads what an engine or a client wrote can be kept busy by it."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.diagnosis.cause import Cause
from appliance.diagnosis.causes import CATALOGUE
from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.fatal_watch import FatalWatch
from appliance.diagnosis.log_text import number_lines
from appliance.launches.stacks import parse as parse_stacks
from appliance.redaction import Redactor
from appliance.vllm.log_phases import PhaseReader
from console.logs import ansi
from console.logs.classify import Classifier, prefix_length
from tests.diagnosis.open_patterns import open_repetitions, patterns_of, phrases

INPUT_BYTES = 64 << 10
LIMIT_S = 0.5
# A line is cut at 4,000 characters before it is read, and an exception's text at 6,000.
LINE = 3990
# Every repetition in these is bounded. The rest of the console reads lines that are cut, or is measured below.
BOUNDED = ("appliance.diagnosis", "appliance.engine_process", "appliance.vllm", "console.logs.classify")


@pytest.mark.parametrize("package", BOUNDED)
def test_no_repetition_is_open(package: str) -> None:
    """Except at the end of a pattern, where nothing can make it give back what it took."""
    patterns = list(patterns_of(package))
    assert patterns
    assert [place for place, pattern in patterns if open_repetitions(pattern)] == []


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        (r"a+", 0),
        (r"a+b", 1),
        (r"(?:a*b)+", 1),
        (r"a{1,9}b", 0),
        (r"(?:a|b+)c", 1),
        (r"(?:a|b+)", 0),
        (r"(?=a+b)c", 1),
        (r"a+$", 1),
    ],
)
def test_an_open_repetition_is_seen(pattern: str, count: int) -> None:
    """The test above can fail."""
    assert open_repetitions(re.compile(pattern)) == count


def seconds(text: str) -> float:
    """Of the processor, for a diagnosis: the least of three where the first takes too long, as a neighbour on the same
    core slows it down."""
    least = float("inf")
    for _ in range(3):
        began = time.process_time()
        diagnose(number_lines(text))
        least = min(least, time.process_time() - began)
        if least < LIMIT_S:
            break
    return least


def lines_of(unit: str, lead: str = "", size: int = INPUT_BYTES) -> str:
    """`size` bytes of lines that repeat the unit, all of them different."""
    line = (lead + unit * (LINE // len(unit) + 1))[:LINE]
    return "\n".join(f"{line}{number}" for number in range(size // LINE))


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: cc " + "support" * 560,
        "ValueError: sm " + "implement" * 440,
        "ValueError: " + "a" * 3900 + " is not supported for quantization method " + "b" * 4000,
        "AttributeError: '" + "Config" * 600 + "' object has no attribute ''",
        "ValueError: max_num_batched_tokens " + "1" * 4000,
        "ValueError: " + "7" * 4000 + " is not divisible by ",
        "NCCL WARN " + "ibv_" * 1000,
    ],
    ids=lambda text: text[:24],
)
def test_a_few_kilobytes_of_one_word_are_read_in_a_moment(text: str) -> None:
    """The first of them took 28 seconds."""
    assert seconds(text) < LIMIT_S
    assert seconds("\n".join(f"{text[:LINE]}{number}" for number in range(INPUT_BYTES // LINE))) < LIMIT_S


def units(cause: Cause) -> Iterator[tuple[str, str]]:
    """Pieces of the row's own phrases, and a sign that lets the row be tried."""
    rng = random.Random(f"{cause.family} {cause.name} {cause.pattern}")
    own = [*phrases(cause.compiled), *phrases(cause.compiled_details), *cause.signs]
    for count in (1, 1, 2, 3):
        parts = rng.sample(own, min(len(own), count))
        yield rng.choice(("", " ", " 12 ", " (3) ")).join(parts) + rng.choice(("", " ", " 7 ")), rng.choice(cause.signs)


@pytest.mark.parametrize(
    "cause", [cause for cause in CATALOGUE if cause.signs], ids=lambda cause: f"{cause.family}-{cause.name}"
)
def test_no_row_is_slow_on_pieces_of_its_own_phrases(cause: Cause) -> None:
    """Which is where a pattern works hardest."""
    for unit, sign in units(cause):
        lead = f"ValueError: {sign} "
        # What a line costs does not depend on how many there are: the whole is read where an eighth takes its share.
        if seconds(lines_of(unit, lead, INPUT_BYTES // 8)) > LIMIT_S / 16:
            assert seconds(lines_of(unit, lead)) < LIMIT_S, unit


READ = ("appliance.diagnosis", "appliance.engine_process", "appliance.vllm", "console.logs", "console.launches")
OTHERS = [
    (place, pattern)
    for package in READ
    for place, pattern in patterns_of(package)
    if not place.startswith("appliance.diagnosis.ca")
]


@pytest.mark.parametrize("pattern", [row[1] for row in OTHERS], ids=[row[0] for row in OTHERS])
def test_no_other_pattern_is_slow_on_its_own_phrases(pattern: re.Pattern[Any]) -> None:
    """On a line as long as any that reaches it (16 KiB), of each of its phrases, and of characters it may repeat."""
    is_bytes = isinstance(pattern.pattern, bytes)
    for unit in [
        *phrases(pattern),
        "a",
        "1",
        " ",
        "a.",
        "a_",
        "a-",
        "[",
        "(",
        "\\",
        "'",
        "\x1b[",
        "\x1b[;",
        "/a",
        "a:",
    ]:
        text: Any = (unit * (16_384 // len(unit)))[:16_384]
        text = text.encode() if is_bytes else text
        began = time.process_time()
        pattern.search(text)
        pattern.fullmatch(text)
        assert time.process_time() - began < LIMIT_S / 4, unit


WORDS = ("a", " ", "key=", "token ", "(a pid=", "\x1b[", "\x1b[1;", "Error: ", "Loading 1 checkpoint shards: ", "1/2 [",
         "Capturing CUDA graphs: 1% ", "Process 1, state S: ", '"', "\\", "-----BEGIN PRIVATE KEY-----", "a@", "http://",
         "authorization: ", "api_key", "a-", "A_", "Traceback (most recent call last):", '  File "', ("vllm: "
             "error: "))  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_what_reads_each_line_is_quick_with_any(word: str) -> None:
    """The watch for the engine's end, vLLM's phases, the console's pages and the export."""
    text = (word * INPUT_BYTES)[: 16 << 10]
    readers = {
        "watch": lambda: FatalWatch().feed(1, text),
        "phases": lambda: PhaseReader(compiles=True, captures=True).feed(text),
        "classify": lambda: Classifier().feed(text.encode()),
        "prefix": lambda: prefix_length(text),
        "ansi": lambda: ansi.plain(text),
        "redaction": lambda: Redactor().text(text),
        "stacks": lambda: parse_stacks(text),
    }
    for name, read in readers.items():
        began = time.process_time()
        read()
        assert time.process_time() - began < LIMIT_S, name
