"""What a layer keeps of the tokens that it has seen, from a closed set: memory plan and allocator know these kinds, and
no families.

Most keep an entry for each token, or for every few tokens, in pages; a `State` keeps one of a fixed size for each
sequence, in slots.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from kernels.indexer import key_bytes
from kernels.packed_entries import entry_bytes, page_bytes

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


class Compressed(msgspec.Struct, frozen=True, kw_only=True):
    """Of every `ratio` tokens an entry of `dim` numbers, key and value of all heads, of which the last `rope_dim` turn
    with the position (DeepSeek-V4); packed where the cache is not in float32. Blocks hold multiples of `ratio`."""

    ratio: int
    dim: int
    rope_dim: int

    def block_bytes(self, block_size: int, item_bytes: int) -> int:
        rows = block_size // self.ratio
        return rows * self.dim * 4 if item_bytes == 4 else page_bytes(rows, entry_bytes(self.dim, self.rope_dim))


class CompressedKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Of every `ratio` tokens the key by which an indexer finds their entry; as `Indexer`, but with `mxfp4` in that
    format rather than in 8 bits."""

    ratio: int
    head_dim: int
    mxfp4: bool = False

    def block_bytes(self, block_size: int, item_bytes: int) -> int:
        rows = block_size // self.ratio
        return rows * self.head_dim * 4 if item_bytes == 4 else page_bytes(rows, key_bytes(self.head_dim, self.mxfp4))


class StatePart(msgspec.Struct, frozen=True):
    """One tensor of a state; `dtype` "" is the model's own."""

    shape: tuple[int, ...]
    dtype: str = ""

    def nbytes(self, item_bytes: int) -> int:
        """With what lies between it and the next one; `item_bytes` is that of a number in the model's own dtype."""
        size = math.prod(self.shape) * {"": item_bytes, "float32": 4}[self.dtype]
        return -(-size // _ALIGNED) * _ALIGNED


class RingPart(msgspec.Struct, frozen=True):
    """The entries of a sequence's last `rows` tokens, each at its position modulo `rows`; otherwise as `Compressed`."""

    rows: int
    dim: int
    rope_dim: int

    def nbytes(self, item_bytes: int) -> int:
        """As of `StatePart`."""
        size = Compressed(ratio=1, dim=self.dim, rope_dim=self.rope_dim).block_bytes(self.rows, item_bytes)
        return -(-size // _ALIGNED) * _ALIGNED


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What a recurrence carries from token to token, and what else has the same size after one token and after a
    million. It cannot be cut back, so that a prefix is continued only from where a copy was made."""

    parts: tuple[StatePart | RingPart, ...]

    def bytes_per_sequence(self, item_bytes: int) -> int:
        return sum(part.nbytes(item_bytes) for part in self.parts)


Paged = FullAttention | SlidingWindow | MLA | Indexer | Compressed | CompressedKeys
CacheSpec = Paged | State


def block_multiple(specs: Sequence[CacheSpec]) -> int:
    """How many tokens a block must be a multiple of."""
    return math.lcm(*(spec.ratio for spec in specs if isinstance(spec, Compressed | CompressedKeys)))


def pool_windows(specs: Sequence[CacheSpec], max_model_len: int | None = None) -> tuple[int | None, ...]:
    """The windows of the pools that pages are kept in, for contexts of up to `max_model_len` tokens: None, of layers
    that look at every token, before the others, then the longest. Layers whose window is as long as a context look at
    every token; there is always a first pool."""
    windows = {_window(spec) for spec in specs if not isinstance(spec, State)}
    if max_model_len is not None:
        windows = {None if window is None or window >= max_model_len else window for window in windows}
    return tuple(sorted(windows, key=lambda window: (window is not None, -(window or 0)))) or (None,)


def of_pool(specs: Sequence[CacheSpec], window: int | None) -> list[CacheSpec]:
    """Those with that window whose pages are in a pool, in their order."""
    return [spec for spec in specs if not isinstance(spec, State) and _window(spec) == window]


def _window(spec: CacheSpec) -> int | None:
    return spec.window if isinstance(spec, SlidingWindow) else None


def bytes_per_token(specs: Sequence[CacheSpec], item_bytes: int, block_size: int = 1) -> int:
    """Of all layers, in a cache of `item_bytes` a number; rounded up where a block, a multiple of `block_multiple`,
    does not divide."""
    return -(-sum(_block_bytes(spec, block_size, item_bytes) for spec in specs) // block_size)


def _block_bytes(spec: CacheSpec, block_size: int, item_bytes: int) -> int:
    match spec:
        case State():
            return 0
        case Compressed() | CompressedKeys():
            return spec.block_bytes(block_size, item_bytes)
        case _:
            return block_size * spec.bytes_per_token(item_bytes)


def bytes_per_sequence(specs: Sequence[CacheSpec], item_bytes: int) -> int:
    """The states of all layers, where the model's own dtype has `item_bytes` a number."""
    return sum(spec.bytes_per_sequence(item_bytes) for spec in specs if isinstance(spec, State))
