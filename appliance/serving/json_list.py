"""Long lists as JSON, one item at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

ENCODER: Final = msgspec.json.Encoder()


def json_list(items: Iterable[Any]) -> msgspec.Raw:
    """No more than one of them exists as Python objects."""
    text = bytearray(b"[")
    for item in items:
        if len(text) > 1:
            text += b","
        ENCODER.encode_into(item, text, -1)
    text += b"]"
    return msgspec.Raw(text)
