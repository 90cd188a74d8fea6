"""What a layer keeps of the tokens that it has seen, from a closed set: memory plan and allocator know these kinds, and
no families."""

from __future__ import annotations

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
