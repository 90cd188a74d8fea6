"""Log lines are hostile input: what is shown of them is printable text, coloured by class names only."""

from __future__ import annotations

import re
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.logs import ansi
from console.logs.classify import Classifier, Level, prefix_length, time_of

CLASS = re.compile(
    r"ansi-(on-)?(bright-)?(black|red|green|yellow|blue|magenta|cyan|white)|ansi-(bold|dim|italic|underline|inverse|strike)"
)

TRACEBACK = "Traceback (most recent call last):"
BRIGHT = "ansi-bright-red"

terminal_text = st.lists(
    st.sampled_from(
        ["\x1b[31m", "\x1b[0m", "\x1b[1;38;5;196m", "\x1b[38;2;1;2;3m", "\x1b]8;;http://x\x07", "\x1b[2J",
         "\x1b[999999m", "\x1b", "\x1b[", "\x1b]0;title", "\x1bP", "\r",
         "\x00", "\x9b", "\u202e", "\u200b", "a", "<b>", "é", "\t"]
    )
    | st.text(max_size=5),
    max_size=40,
).map("".join)  # fmt: skip


@given(terminal_text)
def test_nothing_but_printable_text_and_known_classes_is_left(line):
    """Whatever comes in, no control, bidi or zero-width character comes out; the pieces add up to the plain line."""
    pieces = ansi.segments(line)
    text = "".join(piece.text for piece in pieces)
    assert text == ansi.plain(line)
    assert all(unicodedata.category(character) not in ("Cc", "Zl", "Zp") or character == "\t" for character in text)
    assert not set(text) & set("\u202e\u2066\u200b\u200f\ufeff")
    assert all(CLASS.fullmatch(name) for piece in pieces for name in piece.classes.split())
    assert all(piece.text for piece in pieces)


@given(terminal_text)
def test_a_terminal_gets_colours_and_nothing_else_that_steers_it(line):
    """`ingot logs` passes on SGR sequences only, and leaves the terminal in its own colours."""
    shown = ansi.coloured(line)
    assert "\x1b" not in re.sub(r"\x1b\[[0-9;:]+m", "", shown)
    assert "\x1b" not in shown or shown.endswith("\x1b[0m")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("plain", [("plain", "")]),
        ("\x1b[0;36m(core)\x1b[0;0m INFO", [("(core)", "ansi-cyan"), (" INFO", "")]),
        ("\x1b[1;31merror\x1b[22m: x", [("error", "ansi-red ansi-bold"), (": x", "ansi-red")]),
        ("\x1b[91;44mx\x1b[49my\x1b[39mz", [("x", f"{BRIGHT} ansi-on-blue"), ("y", BRIGHT), ("z", "")]),
        ("\x1b[38;5;196mred\x1b[m", [("red", "ansi-bright-red")]),
        ("\x1b[38;2;0;0;230mblue", [("blue", "ansi-blue")]),
        ("\x1b[48;5;232mgrey", [("grey", "ansi-on-black")]),
        ("\x1b[38;5mcut", [("cut", "")]),
        ("\x1b[;mx", [("x", "")]),
        ("  0%|   |\r 50%|## |\r100%|###|", [("100%|###|", "")]),
        ("dos\r", [("dos", "")]),
        ("a\x00b\x7fc", [("a␀b␡c", "")]),
        ("\x1b]8;;javascript:alert(1)\x1b\\link\x1b]8;;\x1b\\", [("link", "")]),
        ("\x1b]0;evil title\x07text", [("text", "")]),
        ("safe\u202egpj.exe", [("safe⟨U+202E⟩gpj.exe", "")]),
        ("", []),
        ("\x1b[31m\x1b[0m", []),
    ],
)  # fmt: skip
def test_lines_as_they_are_shown(line, expected):
    """Colours become classes, drawn-over text is what a terminal shows, hidden characters are made visible."""
    assert [tuple(segment) for segment in ansi.segments(line)] == expected


@pytest.mark.parametrize(
    "bomb", ["\x1b[", "\x1b]", "\x1b[1;", "\x1b[31m", "\x1bP\x1b", "\r", "\x1b[" + "9" * 100, "\x1b[0 "]
)
def test_an_escape_bomb_takes_no_long_time(bomb):
    """A line made of nothing but unfinished sequences is worked through in time linear in its length."""
    line = bomb * (400_000 // len(bomb))
    begun = time.process_time()
    ansi.segments(line)
    ansi.coloured(line)
    assert time.process_time() - begun < 4


@pytest.mark.parametrize(
    ("lines", "levels"),
    [
        (["INFO 11-20 10:00:00 [core.py:1] no ERROR here"], "I"),
        (["\x1b[0;36m(EngineCore_DP0 pid=7)\x1b[0;0m ERROR 11-20 [core.py:1] failed"], "E"),
        (["WARNING 1", "  more of it", "INFO 2"], "WWI"),
        (["x", TRACEBACK, '  File "a.py", line 1', "    1/0", "ZeroDivisionError: x", "after"], "OEEEEO"),
        ([TRACEBACK, "    raise UserWarning('INFO')", "ValueError: bad", "INFO on"], "EEEI"),
        (["/usr/lib/x.py:118: UserWarning: too old"], "W"),
        (["a.cu:9:10: fatal error: Python.h: No such file"], "E"),
        (["torch.OutOfMemoryError: CUDA out of memory."], "E"),
        (["[core.py:492] ValueError: Free memory"], "E"),
        (["errors: 0, ERROR_COUNT=0, /tmp/ERROR/x"], "O"),
        (["DEBUG a", "", "b"], "DOO"),
        (["Segmentation fault (core dumped)"], "E"),
    ],
)  # fmt: skip
def test_levels(lines, levels):
    """A line's level is its own, or that of the traceback or message it goes on with."""
    classifier = Classifier()
    found = [classifier.feed(line.encode()).level for line in lines]
    assert [level.name[0] for level in found] == list(levels)


def test_processes_and_times():
    """The process that wrote a line, and when, where the line says so."""
    classifier = Classifier()
    assert classifier.feed(b"\x1b[0;36m(EngineCore_DP0 pid=71)\x1b[0;0m INFO x").process == "EngineCore_DP0"
    assert classifier.feed(b"(VllmWorker rank=5 pid=3073)   File").process == "VllmWorker rank=5"
    assert classifier.feed(b"[2025-03-07 09:25:24 TP3] Using").process == "TP3"
    assert classifier.feed(b"(not a process) x") == (Level.OTHER, "")
    assert time_of("INFO 11-20 14:02:11 [core.py:1] x") == "14:02:11"
    assert time_of("[2025-06-26T16:27:15Z] ERROR") == "16:27:15"
    assert time_of("took 593 secs, 99:99:99") is None


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        ("(EngineCore_DP0 pid=7) INFO 11-20 10:00:00 [core.py:1] step", "[core.py:1] step"),
        ("[2025-03-07 09:25:24 TP3] Using default", "Using default"),
        ("2026-11-20 10:00:00,123 WARNING low memory", "low memory"),
        ("10:00:00.123 INFO weights", "weights"),
        ("(VllmWorker rank=5 pid=3073)   File x", "  File x"),
        ("Traceback (most recent call last):", "Traceback (most recent call last):"),
        ("INFO without a time", "INFO without a time"),
        ("", ""),
    ],
)
def test_what_columns_show_can_be_left_out_of_the_text(line, rest):
    """Process, time and level at a line's beginning are known as such; nothing else is."""
    assert line[prefix_length(line) :] == rest
