"""What pydantic says of a value that it refuses: its first line counts the errors, and those that follow say which
value, and why."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter

from appliance.diagnosis.dressing import plain, undress
from appliance.protocol import EvidenceLine

HEADING = re.compile(r"\d{1,4} validation errors? for (?P<config>\w{1,60})[ \t]{0,4}$", re.MULTILINE)
# The value's name, where it stands on a line of its own, and what is wrong with it.
PROBLEM = re.compile(
    r"\s{0,8}(?:(?P<name>[a-z][\w.\[\]',-]{0,80})\n)?\s{1,8}(?:Value error, |Assertion failed, )?(?P<why>[^\n]{1,400})"
)
GIVEN = re.compile(r" ?\[type=\w{1,60}, input_value=.{0,4000}$")
# A value that is short and none of what may be a secret's form.
PLAIN = re.compile(
    r"\[type=(?:enum|literal_error|multiple_of|(?:greater|less)_than\w{0,20}|\w{1,20}_(?:parsing|type)),"
    r" input_value=(?P<value>'[A-Za-z][A-Za-z._-]{0,39}'|-?\d{1,12}(?:\.\d{1,12})?), input_type="
)
MAX_LINES = 12


def lines_below(line: EvidenceLine, words: str, key: str, lines: Sequence[EvidenceLine]) -> tuple[str, ...]:
    """Of a heading without a traceback, the lines of its stream that follow; none of any other line."""
    if HEADING.search(words) is None:
        return ()
    index = bisect_left(lines, line.number, key=attrgetter("number"))
    below = [undress(plain(other.text)) for other in lines[index + 1 : index + 1 + MAX_LINES]]
    return tuple(dressed.words.rstrip() for dressed in below if dressed.key == key)


def with_problem(summary: str, message: str) -> str:
    """The summary with the first error itself, where it has only their number."""
    if HEADING.search(summary.rstrip(".")) is None:
        return summary
    heading = HEADING.search(message)
    problem = PROBLEM.match(message, heading.end()) if heading is not None else None
    if heading is None or problem is None:
        return summary
    why = GIVEN.sub("", problem["why"]).rstrip(". ")
    given = PLAIN.search(problem["why"])
    if given is not None and given["value"].strip("'") not in why:
        why = f"{why}, not {given['value']}"
    name = f"{problem['name'].partition('.literal[')[0]}: " if problem["name"] else ""
    return HEADING.sub(lambda _: f"{heading['config']}: {name}{why}", summary.rstrip(".")) + "."
