"""Tells a bug in Ingot from an error that a setting, a model or a machine caused."""

from __future__ import annotations

import re
from typing import Final

from appliance.diagnosis.traceback_reader import LoggedException

TYPES: Final = frozenset({
    "AssertionError", "AttributeError", "IndexError", "KeyError", "NameError", "NotImplementedError", "RecursionError",
    "TypeError", "UnboundLocalError", "ValueError", "ZeroDivisionError",
})  # fmt: skip
"""What a mistake in a program raises. What a machine causes, such as OSError or torch's RuntimeError, is not among
them."""
OURS: Final = re.compile(r'File "(?P<root>[^"\n]{0,400}?)/(?P<package>appliance|kernels)/')
CHECKS: Final = re.compile(r"/(?:appliance/(?:checkpoint|models)|kernels)/")
"""Where a ValueError that is raised on purpose refuses a model."""
EXPORT: Final = "ingot launches export latest"


def is_own_bug(exception: LoggedException) -> bool:
    """Whether its innermost place is in Ingot's own code. Other projects have a folder `kernels` too: it is ours only
    beside `appliance`."""
    if exception.type not in TYPES or not exception.frames or is_refusal(exception):
        return False
    return _is_ours(exception)


def is_refusal(exception: LoggedException) -> bool:
    """Whether Ingot's own code refused what a model asks for: the innermost line raises the exception itself."""
    if exception.type != "ValueError" or not exception.frames:
        return False
    place, code = exception.frames[-1]
    return code.startswith("raise ") and CHECKS.search(place.text) is not None and _is_ours(exception)


def _is_ours(exception: LoggedException) -> bool:
    places = [OURS.search(place.text) for place, _ in exception.frames]
    roots = {place["root"] for place in places if place is not None and place["package"] == "appliance"}
    innermost = places[-1]
    return innermost is not None and innermost["root"] in roots
