"""What a layer keeps of the tokens that it has seen, from a closed set: memory plan and allocator know these kinds, and
no families.

Most keep an entry for each token, in pages; a `State` keeps one of a fixed size for each sequence, in slots.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from kernels.indexer import key_bytes

# Every part of a state begins at a multiple of it: kernels load 16 bytes at a time.
_ALIGNED: Final = 256


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


class MLA(msgspec.Struct, frozen=True, kw_only=True):
    """Of every token one latent of `rank` numbers, from which all heads' keys and values are made, and the `rope_dim`
    numbers of a key that turn with its position (DeepSeek-V2, arXiv 2405.04434)."""

    rank: int
    rope_dim: int

    def bytes_per_token(self, item_bytes: int) -> int:
        return (self.rank + self.rope_dim) * item_bytes


class Indexer(msgspec.Struct, frozen=True, kw_only=True):
    """Of every token the key of `head_dim` numbers by which an indexer finds it (DeepSeek-V3.2, arXiv 2512.02556).
    Beside the cache of what is found; in 8 bits with their scales where that is not in float32."""

    head_dim: int

    def bytes_per_token(self, item_bytes: int) -> int:
        return self.head_dim * item_bytes if item_bytes == 4 else key_bytes(self.head_dim)


class StatePart(msgspec.Struct, frozen=True):
    """One tensor of a state; `dtype` "" is the model's own."""

    shape: tuple[int, ...]
    dtype: str = ""

    def nbytes(self, item_bytes: int) -> int:
        """With what lies between it and the next one; `item_bytes` is that of a number in the model's own dtype."""
        size = math.prod(self.shape) * {"": item_bytes, "float32": 4}[self.dtype]
        return -(-size // _ALIGNED) * _ALIGNED


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What a recurrence carries from token to token: the same size after one token and after a million. It cannot be
    cut back, so that a prefix is continued only from where a copy was made."""

    parts: tuple[StatePart, ...]

    def bytes_per_sequence(self, item_bytes: int) -> int:
        return sum(part.nbytes(item_bytes) for part in self.parts)


Paged = FullAttention | SlidingWindow | MLA | Indexer
CacheSpec = Paged | State


def bytes_per_token(specs: Sequence[CacheSpec], item_bytes: int) -> int:
    """Of all layers, in a cache of `item_bytes` a number."""
    return sum(spec.bytes_per_token(item_bytes) for spec in specs if not isinstance(spec, State))


def bytes_per_sequence(specs: Sequence[CacheSpec], item_bytes: int) -> int:
    """The states of all layers, where the model's own dtype has `item_bytes` a number."""
    return sum(spec.bytes_per_sequence(item_bytes) for spec in specs if isinstance(spec, State))
