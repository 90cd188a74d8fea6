"""Answers that clients may come back to, in memory: the ones used last, each for the API key that asked for it."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final, NamedTuple

import msgspec

from appliance.serving.errors import ApiError, bad_request
from appliance.serving.responses.items import Item

MAX_BYTES: Final = 64 << 20
SETTING: Final = "response-store"


class StoredResponse(msgspec.Struct, frozen=True):
    """`input` has the items of the whole conversation before this answer."""

    response: dict[str, Any]
    input: list[Item]

    @property
    def items(self) -> list[Item]:
        """What the next answer follows."""
        return [*self.input, *self.response["output"]]


class _Entry(NamedTuple):
    encoded: bytes
    item_ids: list[str]


class ResponseStore:
    """At most `most` answers, and `most_bytes` of them together. Owners are ids of API keys, "" where none is needed;
    one owner's answers do not exist for another."""

    def __init__(self, most: int = 0, most_bytes: int = MAX_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()
        self._of_items: dict[tuple[str, str], str] = {}

    @property
    def is_on(self) -> bool:
        return self._most > 0

    def resize(self, most: int) -> None:
        self._most = most
        self._shrink()

    def keep(self, owner: str, stored: StoredResponse) -> None:
        """Forgets those used least recently, and this one at once where it is larger than all may be."""
        response_id = stored.response["id"]
        entry = _Entry(msgspec.json.encode(stored), [item["id"] for item in stored.items])
        self._entries[owner, response_id] = entry
        self._bytes += len(entry.encoded)
        self._of_items.update({(owner, item_id): response_id for item_id in entry.item_ids})
        self._shrink()

    def get(self, owner: str, response_id: str, param: str | None = None) -> StoredResponse:
        """Raises ApiError; `param` names the field that asks, None if it is the address."""
        if not self.is_on:
            raise _off(param)
        if (owner, response_id) not in self._entries:
            raise _unknown(response_id, param)
        self._entries.move_to_end((owner, response_id))
        return msgspec.json.decode(self._entries[owner, response_id].encoded, type=StoredResponse)

    def item(self, owner: str, item_id: str) -> Item:
        """Raises ApiError."""
        if not self.is_on:
            raise _off("input")
        response_id = self._of_items.get((owner, item_id))
        if response_id is None:
            raise _unknown(item_id, "input")
        items = self.get(owner, response_id).items
        return next(item for item in items if item["id"] == item_id)

    def delete(self, owner: str, response_id: str) -> None:
        """Raises ApiError."""
        self.get(owner, response_id)
        self._remove((owner, response_id))

    def _shrink(self) -> None:
        while len(self._entries) > self._most or self._bytes > self._most_bytes:
            self._remove(next(iter(self._entries)))

    def _remove(self, key: tuple[str, str]) -> None:
        entry = self._entries.pop(key)
        self._bytes -= len(entry.encoded)
        owner, response_id = key
        for item_id in entry.item_ids:
            if self._of_items.get((owner, item_id)) == response_id:
                del self._of_items[owner, item_id]


def _off(param: str | None) -> ApiError:
    message = (
        f"Answers are not kept here: the profile's {SETTING} is 0. Set it to how many to keep, or send the whole "
        "conversation in input."
    )
    return ApiError(404 if param is None else 400, message, param=param, code="responses_not_stored")


def _unknown(known_as: str, param: str | None) -> ApiError:
    message = f"{known_as[:100]!r} is not known: it was never kept, or others have taken its place. Send its items."
    if param is None:
        return ApiError(404, message, code="response_not_found")
    return bad_request(message, param, "response_not_found")
