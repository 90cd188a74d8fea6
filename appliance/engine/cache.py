"""The memory of the caches: pages of blocks, and rows of states."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from appliance.checkpoint.cache_specs import (
    MLA,
    CacheSpec,
    Compressed,
    CompressedKeys,
    FullAttention,
    Indexer,
    RingPart,
    SlidingWindow,
    State,
    StatePart,
    bytes_per_sequence,
)
from appliance.engine.snapshots import FRESH
from appliance.models.batch import CompressedCache, KeyValueCache, LatentCache, LayerCache, StateCache
from appliance.models.collectives import ALONE, Group
from kernels.indexer import key_bytes
from kernels.packed_entries import entry_bytes, page_bytes


class Caches:
    """One cache a layer, of zeros, as its specs say: one, or those of its latents and of its indexer.

    A layer has `num_blocks` blocks, in the first pool, unless its window is one of `window_blocks`: these are the other
    pools, in their order, and the blocks of each. `dtype` is that of pages, `state_dtype` that of states whose spec
    names none. The states of all layers are side by side in each row of `states` [rows, bytes], so that a row is copied
    at once.
    """

    def __init__(
        self,
        specs: Sequence[tuple[CacheSpec, ...]],
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        state_rows: int = 0,
        state_dtype: torch.dtype = torch.float32,
        window_blocks: Mapping[int, int] | None = None,
    ) -> None:
        self._num_blocks, self._block_size = num_blocks, block_size
        self._window_blocks = dict(window_blocks or {})
        pools = {window: place for place, window in enumerate(self._window_blocks, 1)}
        self._pool_of = [pools.get(_window(layer), 0) for layer in specs]
        self._dtype, self._state_dtype = dtype, state_dtype
        row_bytes = bytes_per_sequence([spec for layer in specs for spec in layer], state_dtype.itemsize)
        self.states = torch.zeros((state_rows if row_bytes else 0, row_bytes), dtype=torch.uint8, device=device)
        self._laid_out = 0  # bytes of a row that have become a layer's
        self.layers = tuple(self._layer(layer) for layer in specs)

    @property
    def nbytes(self) -> int:
        """With what pages are padded by."""
        return self.states.nbytes + sum(tensor.untyped_storage().nbytes() for tensor in self._paged(None))

    def load_state(self, row: int, slot: int) -> None:
        """Begin a sequence in `slot` from the state in `row`, from zeros where that is FRESH, whatever was there."""
        if row == FRESH:
            self.states[slot].zero_()
        else:
            self.states[slot].copy_(self.states[row])

    def save_state(self, slot: int, row: int) -> None:
        self.states[row].copy_(self.states[slot])

    def not_finite(self, blocks: list[int], group: Group = ALONE, pool: int = 0) -> set[int]:
        """Those of the `blocks` of a pool that hold NaN or infinity in some layer of some rank."""
        if not blocks:
            return set()
        index = torch.tensor(blocks, device=self.states.device)
        finite = torch.ones(len(blocks), dtype=torch.bool, device=index.device)
        for tensor in self._paged(pool):
            found = tensor.view(torch.uint8).index_select(0, index).view(tensor.dtype)
            finite &= found.float().flatten(1).isfinite().all(dim=-1)
        return {block for block, sound in zip(blocks, group.all(finite).tolist(), strict=True) if not sound}

    def scrub(self, blocks: list[int], pool: int = 0) -> None:
        """Write zeros over blocks of a pool that hold what was not computed from numbers. Attention lets nothing in
        that a sequence does not see (`kernels.paged_attention`), so this is a second line of defence, and only damaged
        blocks need it."""
        for tensor in self._paged(pool):
            tensor.view(torch.uint8)[blocks] = 0  # whose bits are those of zero in every format

    def _paged(self, pool: int | None) -> Iterator[Tensor]:
        """The pages of the layers of a pool, or of all."""
        for cache, of_layer in zip(self.layers, self._pool_of, strict=True):
            if pool not in (None, of_layer):
                continue
            if isinstance(cache, CompressedCache):
                yield from cache.pages
            elif not isinstance(cache, StateCache):
                yield from cache.tensors

    def _layer(self, specs: tuple[CacheSpec, ...]) -> LayerCache:
        match specs:
            case (State(parts=(RingPart(), *_) as parts), *paged):
                window, *tails = (self._part(part) for part in parts)
                return CompressedCache(window, tuple(tails), tuple(map(self._compressed, paged)))
            case (State(parts=parts),):
                return StateCache(tuple(self._part(part) for part in parts))
            case (MLA() as latent,):
                return LatentCache(self._zeros(latent.rank + latent.rope_dim))
            case (MLA() as latent, Indexer() as index):
                return LatentCache(self._zeros(latent.rank + latent.rope_dim), self._keys(index))
            case (FullAttention() | SlidingWindow() as spec,):
                blocks = self._window_blocks.get(_window(specs), self._num_blocks)
                return KeyValueCache(*(self._zeros(spec.num_kv_heads, spec.head_dim, blocks=blocks) for _ in range(2)))
        raise AssertionError(f"no layer keeps {specs}")

    def _keys(self, spec: Indexer) -> Tensor:
        """In float32, or pages of bytes."""
        if self._dtype == torch.float32:
            return self._zeros(spec.head_dim)
        size = self._block_size * spec.bytes_per_token(self._dtype.itemsize)
        return torch.zeros((self._num_blocks, size), dtype=torch.uint8, device=self.states.device)

    def _compressed(self, spec: CacheSpec) -> Tensor:
        """In float32, or pages of bytes."""
        assert isinstance(spec, Compressed | CompressedKeys)
        blocks, rows = self._num_blocks, self._block_size // spec.ratio
        dim = spec.head_dim if isinstance(spec, CompressedKeys) else spec.dim
        if self._dtype == torch.float32:
            return torch.zeros((blocks, rows, dim), device=self.states.device)
        each = key_bytes(dim, spec.mxfp4) if isinstance(spec, CompressedKeys) else entry_bytes(dim, spec.rope_dim)
        pages = torch.zeros((blocks, page_bytes(rows, each)), dtype=torch.uint8, device=self.states.device)
        return pages[:, : rows * each]

    def _zeros(self, *of_a_token: int, blocks: int = 0) -> Tensor:
        shape = blocks or self._num_blocks, self._block_size, *of_a_token
        return torch.zeros(shape, dtype=self._dtype, device=self.states.device)

    def _part(self, part: StatePart | RingPart) -> Tensor:
        start = self._laid_out
        self._laid_out += part.nbytes(self._state_dtype.itemsize)
        if isinstance(part, StatePart):
            dtype, shape = torch_dtype(part.dtype) if part.dtype else self._state_dtype, part.shape
        elif self._state_dtype == torch.float32:
            dtype, shape = torch.float32, (part.rows, part.dim)
        else:
            dtype, shape = torch.uint8, (part.rows * entry_bytes(part.dim, part.rope_dim),)
        size = math.prod(shape) * dtype.itemsize
        return self.states[:, start : start + size].view(dtype).view(-1, *shape)


def _window(specs: tuple[CacheSpec, ...]) -> int:
    """Of a layer that keeps this; 0 where it has none."""
    return next((spec.window for spec in specs if isinstance(spec, SlidingWindow)), 0)


def torch_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
