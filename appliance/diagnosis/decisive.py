"""The names and numbers in a message. A known cause whose summary has none of them is told with the line that has."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from appliance.diagnosis.cause import UNKNOWN, Cause
from appliance.diagnosis.stripping import without_advice, without_dumps
from appliance.diagnosis.traceback_reader import END, TYPE_NAME, LoggedException

MAX_SAID = 240
MAX_TEXT = 6000
# A quoted value, a number, a path, a flag, or a name as programs write it.
NAMES = re.compile(
    r"['\"`][^'\"`\n]{1,200}['\"`]|\d|[a-z]\d|(?<!\w)/\w|\w_\w|\w::\w|--[a-z]|[a-z][A-Z]|\w[.-]\w"
    r"|\b(?:for|named|module|package) [a-z]\w{1,60}$"
)
# What CUDA and torch add to every error, and lists of ways out.
BOILERPLATE = re.compile(r"CUDA_LAUNCH_BLOCKING|TORCH_USE_CUDA_DSA|Search for `|https?://(?![\w.-]{1,80}:\d)|^- ")
# What announced the list of choices that was taken out.
CHOICES_BELOW = re.compile(r"(?<=[.'\"\])]) ?[^.'\"]{1,60}(?:are|of|from|is):$")
# What pydantic adds, once the input it was given is blanked.
VALIDATED = re.compile(r" ?\[type=\w{1,60}, [^\]]{0,200}\]$")


def with_names(
    summary: str, cause: Cause, groups: Mapping[str, str], exceptions: Sequence[LoggedException], line: str
) -> str:
    """The summary with the line of the message by which the cause is known, or the first after it that names something;
    unchanged where it has a value of its own."""
    if cause.mute or any(value != UNKNOWN and f"{{{name}}}" in cause.summary for name, value in groups.items()):
        return summary
    said = _code_of(exceptions) or _said(cause, exceptions[0].text if exceptions else line)
    return f"{summary.rstrip('.')}. The log says: {said}" if said and said not in summary else summary


def _code_of(exceptions: Sequence[LoggedException]) -> str:
    """Of one without a message, as a failed assertion is, the code that raised it; empty for any other."""
    if not exceptions or exceptions[0].message.partition("\n")[0] or not exceptions[0].frames:
        return ""
    return exceptions[0].frames[-1][1]


def _said(cause: Cause, text: str) -> str:
    """What the message advises counts only where the rest names nothing; what it carries with it never does."""
    whole = without_dumps(text[:MAX_TEXT])
    told = without_advice(whole)
    places = cause.places_in(told)
    start = told.rfind("\n", 0, places[0]) + 1 if places else 0
    lines = [_without_type(line) for line in (*told[start:].split("\n"), *whole.split("\n"), *text.split("\n"))]
    lines = [CHOICES_BELOW.sub("", line) for line in lines]
    named = (line for line in lines if NAMES.search(line) and not BOILERPLATE.search(line))
    words = next((line for line in named if not line.endswith(":")), "")
    return words if len(words) <= MAX_SAID else f"{words[:MAX_SAID].rpartition(' ')[0]} ..."


def _without_type(line: str) -> str:
    words = VALIDATED.sub("", " ".join(line.split()))
    end = END.match(words)
    return end["message"] if end is not None and end["message"] and TYPE_NAME.search(end["type"]) else words
