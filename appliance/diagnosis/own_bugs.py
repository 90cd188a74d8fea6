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
EXPORT: Final = "ingot launches export latest"


def is_own_bug(exception: LoggedException) -> bool:
    """Whether its innermost place is in Ingot's own code. Other projects have a folder `kernels` too: it is ours only
    beside `appliance`."""
    if exception.type not in TYPES or not exception.frames:
        return False
    places = [OURS.search(place.text) for place, _ in exception.frames]
    roots = {place["root"] for place in places if place is not None and place["package"] == "appliance"}
    innermost = places[-1]
    return innermost is not None and innermost["root"] in roots
