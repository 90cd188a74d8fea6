"""How messages quote values, and name settings."""

from __future__ import annotations

import re

LEAST_VALUE = 3  # characters of a value that may be looked up without its setting's name
TOO_COMMON = ("true", "false", "none", "auto", "null", "default", "model", "vllm")
QUOTED = tuple(re.compile(quotes) for quotes in (r"'([^'\n]{1,200})'", r'"([^"\n]{1,200})"', r"`([^`'\n]{1,200})[`']"))
NAME = re.compile(r"\b[a-z][a-z0-9]{1,30}(?:_[a-z0-9]{1,30}){1,6}\b")
