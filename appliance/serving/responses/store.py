"""Answers that clients may come back to, in memory: the ones used last, each for the API key that asked for it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Final, NamedTuple

import msgspec

from appliance.serving.errors import MAX_BODY_BYTES, ApiError, bad_request
from appliance.serving.responses.items import Item

MAX_BYTES: Final = 64 << 20
# Of the items that a request refers to, as many as it could hold itself.
MAX_REFERENCED_BYTES: Final = MAX_BODY_BYTES
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
    one owner's answers do not exist for another. Threads may share it."""

    def __init__(self, most: int = 0, most_bytes: int = MAX_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()
        self._of_items: dict[tuple[str, str], str] = {}
        self._lock = threading.Lock()

    @property
    def is_on(self) -> bool:
        return self._most > 0

    def resize(self, most: int) -> None:
        with self._lock:
            self._most = most
            self._shrink()

    def keep(self, owner: str, stored: StoredResponse) -> None:
        """Forgets those used least recently, and this one at once where it is larger than all may be."""
        response_id = stored.response["id"]
        entry = _Entry(msgspec.json.encode(stored), [item["id"] for item in stored.items])
        with self._lock:
            self._entries[owner, response_id] = entry
            self._bytes += len(entry.encoded)
            self._of_items.update({(owner, item_id): response_id for item_id in entry.item_ids})
            self._shrink()

    def get(self, owner: str, response_id: str, param: str | None = None) -> StoredResponse:
        """Raises ApiError; `param` names the field that asks, None if it is the address."""
        with self._lock:
            encoded = self._find(owner, response_id, param).encoded
            self._entries.move_to_end((owner, response_id))
        return msgspec.json.decode(encoded, type=StoredResponse)

    def id_with_item(self, owner: str, item_id: str, param: str) -> str:
        """The id of the answer that has the item. Raises ApiError."""
        if not self.is_on:
            raise _off(param)
        response_id = self._of_items.get((owner, item_id))
        if response_id is None:
            raise _unknown(item_id, param)
        return response_id

    def delete(self, owner: str, response_id: str) -> None:
        """Raises ApiError."""
        with self._lock:
            self._find(owner, response_id, None)
            self._remove((owner, response_id))

    def _find(self, owner: str, response_id: str, param: str | None) -> _Entry:
        if not self.is_on:
            raise _off(param)
        if (owner, response_id) not in self._entries:
            raise _unknown(response_id, param)
        return self._entries[owner, response_id]

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


class StoredItems:
    """The items that one request refers to. Each answer is decoded once, and an item that is referred to again is
    shared."""

    def __init__(self, store: ResponseStore, owner: str) -> None:
        self._store = store
        self._owner = owner
        self._items: dict[str, Item] = {}
        self._sizes: dict[str, int] = {}
        self._bytes = 0

    def of(self, response_id: str, param: str) -> list[Item]:
        """What follows on an answer follows these. Raises ApiError."""
        items = self._store.get(self._owner, response_id, param).items
        self._items.update({item["id"]: item for item in items})
        return items

    def item(self, item_id: str, param: str) -> Item:
        """Raises ApiError, also where all items together become too large."""
        if item_id not in self._items:
            self.of(self._store.id_with_item(self._owner, item_id, param), param)
        item = self._items[item_id]
        if item_id not in self._sizes:
            self._sizes[item_id] = len(msgspec.json.encode(item))
        self._bytes += self._sizes[item_id]
        if self._bytes > MAX_REFERENCED_BYTES:
            limit = MAX_REFERENCED_BYTES >> 20
            message = f"{param}: the items referred to hold more than {limit} MiB in all. Refer to fewer."
            raise bad_request(message, param, "request_too_large")
        return item


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
