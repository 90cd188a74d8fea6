"""DeepSeek-V4's attention in Triton. A program takes a tile of heads of one query, and reads the packed entries that
this sees from where they lie: those of its window, then compressed ones. A decode is divided into parts, which are
joined afterwards; a prefill has queries enough. New entries of decodes go into their rings first; those of prefills
into a page of their own, since a ring has no room for them, and the last into the ring afterwards."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from kernels.compressed_attention import SCRATCH_BYTES, SPLIT, SPLIT_ON_HOPPER, part_bytes, variants
from kernels.compressed_attention.hopper_kernels import hopper_decode_kernel
from kernels.compressed_attention.reference import Entries
from kernels.compressed_attention.triton_kernels import attend_kernel, keep_kernel, merge_kernel
from kernels.compressed_attention.variants import WINDOW
from kernels.launch import architecture, cdiv, interpreted, launch
from kernels.packed_entries import entry_bytes, page_bytes
from kernels.packed_entries.triton import Pages, as_pages
from kernels.packed_entries.variants import DIM, ROPE, pages_of
from kernels.paged_attention.metadata import AttentionMetadata
from kernels.paged_attention.triton import decode_runs
from kernels.variants import Variant

_tile = functools.cache(variants.tile_of)
_attend = functools.cache(variants.attend)
_hopper_decode = functools.cache(variants.hopper_decode)
_merge = functools.cache(variants.merge)
_keep = functools.cache(variants.keep)
_NEVER = 1 << 30  # the ratio of layers without compressed entries


def compressed_attention(
    query: Tensor,
    entry: Tensor,
    window: Tensor,
    rows: Tensor,
    compressed: Entries | None,
    sinks: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    metadata: AttentionMetadata,
    size: int,
) -> Tensor:
    """As `reference.compressed_attention`, for bfloat16 and float16, entries of 512 numbers of which 64 turn, windows
    of 128 tokens, and packed caches: pages have a power of two of entries, and are multiples of 16 bytes apart. All
    else is contiguous, and the table of angles in float32. `positions` is not read: lengths say it."""
    dim, rope_dim = query.shape[-1], cos_sin.shape[-1]
    assert (dim, rope_dim, size) == (DIM, ROPE, WINDOW), f"{rope_dim} of {dim} turn, a window of {size}"
    out = torch.empty_like(query)
    codes = _codes(architecture())
    call = _Call(query, entry, out, as_pages(window, codes), rows, compressed, sinks, cos_sin, metadata, codes)
    decodes, sequences = metadata.num_decodes, len(metadata.query_lens)
    if decodes:
        call.keep(call.window, 0, decodes, 1)
        call.decode()
    if decodes < sequences:
        fresh = query.new_empty(1, page_bytes(len(query) - decodes, entry_bytes(DIM, ROPE)), dtype=torch.uint8)
        longest = max(metadata.query_lens[decodes:])
        page = as_pages(fresh, codes)
        call.keep(page, decodes, sequences, longest, ring=False)
        call.prefill(page, longest)
        call.keep(call.window, decodes, sequences, min(longest, WINDOW))
    return out


@functools.cache
def _codes(arch: int) -> str:
    return pages_of(arch)[0]


class _Call:
    """One call, with what its launches share."""

    def __init__(
        self,
        query: Tensor,
        entry: Tensor,
        out: Tensor,
        window: Pages,
        rows: Tensor,
        compressed: Entries | None,
        sinks: Tensor,
        cos_sin: Tensor,
        metadata: AttentionMetadata,
        codes: str,
    ) -> None:
        self._query, self._entry, self._out, self._rows = query, entry, out, rows
        self._sinks, self._cos_sin, self._metadata = sinks, cos_sin, metadata
        self.window, self._heads = window, query.shape[1]
        self._ratio, self._pages = _NEVER, window
        self._slots = self._counts = metadata.seq_lens  # not read, unless entries were chosen
        self._top_k = 0
        if compressed is not None:
            self._ratio, self._pages = compressed.ratio, as_pages(compressed.pages, codes)
            size = self._pages.rows
            assert size & (size - 1) == 0, f"{size} entries in a page"
            if compressed.chosen is not None:
                self._slots, self._counts = compressed.chosen
                self._top_k = self._slots.shape[1]
        self._arch, self._dtype = architecture(), str(query.dtype).removeprefix("torch.")
        self._tile = _tile(self._arch, self._heads)

    def keep(self, pages: Pages, first: int, end: int, most: int, *, ring: bool = True) -> None:
        """The entries of the last `most` tokens of the sequences from `first` on."""
        of = self._metadata
        launch(
            keep_kernel, _keep(self._arch, self._dtype, ring=ring), (most, end - first),
            self._entry, *pages.views, self._rows, of.query_start_loc, of.seq_lens,
            first, of.num_decodes, pages.stride16, pages.rows,
        )  # fmt: skip

    def decode(self) -> None:
        metadata, device = self._metadata, self._query.device
        seen = [WINDOW + self._most(length) for length in metadata.context_lens[: metadata.num_decodes]]
        # Whose parts are all joined by `merge_kernel`, one alone too. It has no form for rings with places for drafts,
        # and cannot be interpreted.
        on_hopper = variants.divides_warps(self._arch, self._tile) and self.window.rows == WINDOW and not interpreted()
        split = SPLIT_ON_HOPPER if on_hopper else SPLIT
        variant = _attend(self._arch, self._dtype, self._tile, decodes=True, chosen=self._top_k > 0)
        for first, count, parts in decode_runs(seen, split, SCRATCH_BYTES // part_bytes(self._heads, DIM)):
            # Of each part: the weighted sum of entries, and the largest score with the sum of weights.
            joined = on_hopper or parts > 1
            held = count if joined else 0
            partial = torch.empty((held, self._heads, parts, DIM), dtype=torch.float32, device=device)
            weights = torch.empty((held, self._heads, parts, 2), dtype=torch.float32, device=device)
            if on_hopper:
                self._launch_on_hopper((self._tiles, parts, count), partial, weights, first)
            else:
                self._launch(variant, (self._tiles * parts, count), partial, weights, self.window, first)
            if joined:
                launch(
                    merge_kernel, _merge(self._dtype), (self._heads, count),
                    partial, weights, self._out, self._counts, self._sinks, self._cos_sin, metadata.seq_lens,
                    first, self._heads, parts, split, self._ratio, int(self._top_k > 0), int(on_hopper),
                )  # fmt: skip
            del partial, weights  # before there are others

    def prefill(self, fresh: Pages, longest: int) -> None:
        decodes, sequences = self._metadata.num_decodes, len(self._metadata.query_lens)
        variant = _attend(self._arch, self._dtype, self._tile, decodes=False, chosen=self._top_k > 0)
        nothing = self._sinks
        self._launch(variant, (self._tiles * longest, sequences - decodes), nothing, nothing, fresh, decodes)

    def _launch(
        self,
        variant: Variant,
        grid: tuple[int, int],
        partial: Tensor,
        weights: Tensor,
        fresh: Pages,
        first: int,
    ) -> None:
        of, pages = self._metadata, self._pages
        launch(
            attend_kernel, variant, grid,
            self._query, self._out, partial, weights, *self.window.views, *fresh.views, *pages.views,
            self._rows, of.block_tables, self._slots, self._counts, self._sinks, self._cos_sin, of.query_start_loc,
            of.seq_lens, first, of.num_decodes, self._heads, self.window.stride16, self.window.rows, fresh.rows,
            pages.stride16, pages.rows.bit_length() - 1, of.block_tables.stride(0), self._top_k, self._ratio, SPLIT,
            DIM**-0.5,
        )  # fmt: skip

    def _launch_on_hopper(self, grid: tuple[int, int, int], partial: Tensor, weights: Tensor, first: int) -> None:
        of, pages = self._metadata, self._pages
        launch(
            hopper_decode_kernel, _hopper_decode(self._dtype, self._top_k > 0), grid,
            self._query, partial, weights, self.window.codes, self.window.scales, pages.codes, pages.scales, self._rows,
            of.block_tables, self._slots, self._counts, of.seq_lens,
            first, self._heads, self.window.stride16, pages.stride16, pages.rows.bit_length() - 1,
            of.block_tables.stride(0), self._top_k, self._ratio, SPLIT_ON_HOPPER, DIM**-0.5,
        )  # fmt: skip

    @property
    def _tiles(self) -> int:
        return cdiv(self._heads, self._tile.rows)

    def _most(self, length: int) -> int:
        """Compressed entries that a query sees behind so many tokens."""
        entries = length // self._ratio
        return min(entries, self._top_k) if self._top_k else entries
