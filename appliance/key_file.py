"""`active/keys.json`: the API keys that the front door accepts, as the console writes them."""

from __future__ import annotations

import msgspec


class Key(msgspec.Struct, frozen=True):
    """A key is 32 random bytes, so its plain hash gives nothing away."""

    id: str
    name: str
    sha256: str


class KeyFile(msgspec.Struct, frozen=True):
    """`required` is the switch of the console's Access page. Files from before there was a switch lack it: there, the
    first key turned it on. `revoked` holds the hashes of revoked keys."""

    keys: list[Key] = []
    required: bool | None = None
    revoked: list[str] = []

    @property
    def is_required(self) -> bool:
        return bool(self.keys) if self.required is None else self.required
