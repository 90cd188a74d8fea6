"""How messages quote values, and name settings."""

from __future__ import annotations

import re

LEAST_VALUE = 3  # characters of a value that may be looked up without its setting's name
TOO_COMMON = ("true", "false", "none", "auto", "null", "default", "model", "vllm")
QUOTED = tuple(re.compile(quotes) for quotes in (r"'([^'\n]{1,200})'", r'"([^"\n]{1,200})"', r"`([^`'\n]{1,200})[`']"))
NAME = re.compile(r"\b[a-z][a-z0-9]{1,30}(?:_[a-z0-9]{1,30}){1,6}\b")


def is_distinct(value: str) -> bool:
    """Whether it means a setting's value wherever it stands."""
    return len(value) >= LEAST_VALUE and value.lower() not in TOO_COMMON


def is_after_noun(name: str, value: str, said: str) -> bool:
    """Whether a word is said right after what it is the value of: `type longrope`, `quantization method: awq`."""
    noun = re.escape(name.rpartition("_")[2])
    return re.search(rf"\b{noun}\W{{1,3}}(?:is\W{{1,2}})?{re.escape(value)}(?!\w)", said) is not None
