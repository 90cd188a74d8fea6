"""What a layer keeps of the tokens that it has seen, from a closed set: memory plan and allocator know these kinds, and
no families. Layers with equal specs form a group."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class _KeysAndValues(msgspec.Struct, frozen=True, kw_only=True):
    num_kv_heads: int
    head_dim: int

    def bytes_per_token(self, item_bytes: int) -> int:
        """A key and a value for each head, of `item_bytes` a number."""
        return 2 * self.num_kv_heads * self.head_dim * item_bytes


class FullAttention(_KeysAndValues, frozen=True, kw_only=True):
    """Keys and values of every token."""


class SlidingWindow(_KeysAndValues, frozen=True, kw_only=True):
    """Keys and values, of which only the last `window` tokens are looked at."""

    window: int


CacheSpec = FullAttention | SlidingWindow


def groups(specs: Iterable[CacheSpec]) -> dict[CacheSpec, tuple[int, ...]]:
    """The layers that have each spec, in the order in which the specs first come."""
    found: dict[CacheSpec, tuple[int, ...]] = {}
    for layer, spec in enumerate(specs):
        found[spec] = (*found.get(spec, ()), layer)
    return found
