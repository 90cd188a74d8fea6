"""Fields of one meaning, under the names that several servers have given it: one value, or a contradiction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from appliance.serving.errors import ApiError, bad_request
from appliance.serving.fields import shown

T = TypeVar("T")


class Asked(NamedTuple, Generic[T]):
    """A value, and the path of the field that it was sent in."""

    param: str
    value: T


def only(given: Mapping[str, T | None]) -> Asked[T] | None:
    """What fields of one meaning say, by their paths; None where none is sent. Raises ApiError where two of them
    differ."""
    asked = [Asked(param, value) for param, value in given.items() if value is not None]
    for other in asked[1:]:
        if other.value != asked[0].value:
            raise contradiction(asked[0], other)
    return asked[0] if asked else None


def contradiction(one: Asked[Any], other: Asked[Any]) -> ApiError:
    message = f"{other.param}: {shown(other.value)} contradicts {one.param}: {shown(one.value)}. Send only one of them."
    return bad_request(message, other.param)
