"""The launch's own settings, as its engine prints them at the start: a fix adjusts these values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from appliance.diagnosis.searchable import Searchable

# Lines that hold arguments and settings.
DUMPS = (b"non-default args", b"with config", b"server_args=", b"args: namespace(", b" serve ", b"launch_server")
REFUSALS = re.compile(r"\busage: |: error: |^Hint: ")
MAX_LINES = 8
_BEFORE = r"(?<![\w-])-{0,2}"
_BETWEEN = r"['\"]?[=: ]{1,2}"
# The profile's key, and the names that engines have for it.
NAMES = (
    ("max-model-len", r"max[_-](?:model|seq)[_-]len|context[_-]length", r"\d{2,9}"),
    ("max-num-seqs", r"max[_-]num[_-]seqs|max[_-]running[_-]requests", r"\d{1,6}"),
    ("gpu-memory-utilization", r"gpu[_-]memory[_-]utilization|mem[_-]fraction[_-]static", r"[01]?\.\d{1,6}"),
    ("tensor-parallel-size", r"tensor[_-]parallel[_-]size|tp[_-]size|tp", r"\d{1,4}"),
)
PATTERNS = tuple((key, re.compile(f"{_BEFORE}(?:{names}){_BETWEEN}({value})\\b")) for key, names, value in NAMES)


def own_settings(log: Searchable, profile: Mapping[str, Any] | None) -> dict[str, str]:
    """By the profile's keys: what the profile says, where there is one, else the first that is printed."""
    found = _of_profile(profile) if profile is not None else {}
    for text in dumps_in(log):
        for key, pattern in PATTERNS:
            if key not in found and (match := pattern.search(text)) is not None:
                found[key] = match[1]
    return found


def dumps_in(log: Searchable) -> Iterator[str]:
    """The first lines that hold arguments and settings; not how a program says which of them it takes or refuses."""
    positions = sorted({position for word in DUMPS for position in log.positions(word)})
    for position in positions[:MAX_LINES]:
        if not REFUSALS.search(text := log.lines[position].text):
            yield text


def _of_profile(document: Mapping[str, Any]) -> dict[str, str]:
    from appliance.profile.schema import BY_KEY  # late: most logs are read without a profile

    keys = ("engine", *(key for key, _, _ in NAMES))
    values = {key: document.get(key, BY_KEY[key].default) for key in keys}
    return {key: str(value) for key, value in values.items() if value is not None}
