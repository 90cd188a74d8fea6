"""`python -m tests.gpu.bench.tune_sparse [HEADS ...]`: times the tiles and parts of sparse attention's decodes, for
`kernels/sparse_mla`, at the shapes of DeepSeek V3.2 (128 heads) and GLM 5 (64); and with 0 heads those of an indexer's
scores, for `kernels/indexer`."""

from __future__ import annotations

import itertools
import sys
from functools import partial
from unittest import mock

import torch

from kernels.indexer import key_bytes
from kernels.indexer import triton as indexer
from kernels.indexer import variants as indexer_variants
from kernels.indexer.cases import Batch as Queries
from kernels.indexer.cases import Shape
from kernels.indexer.cases import batch as queries_and_keys
from kernels.launch import architecture
from kernels.mla_attention import SHAPES
from kernels.paged_attention.variants import Tile
from kernels.sparse_mla import triton, variants
from kernels.sparse_mla.cases import Batch, batch
from tests.gpu.bench.ceilings import copy_bandwidth, median_s
from tests.gpu.bench.precompile import precompile
from tests.gpu.bench.tune_latent import _report, _share_of_copy

TOP_K = 2048
TILES = {
    16: ((16, 32, 4, 3), (16, 32, 8, 3), (16, 64, 4, 2), (16, 64, 8, 2)),
    64: ((64, 32, 8, 2), (64, 32, 8, 3), (64, 64, 8, 2), (32, 32, 8, 3), (32, 64, 8, 2), (64, 16, 8, 3)),
    128: ((64, 32, 8, 2), (64, 32, 8, 3), (64, 64, 8, 2), (32, 32, 8, 3), (64, 16, 8, 3)),
}
SPLITS = (256, 512, 1024, 2048)
SCORED = ((64, 1, 4), (128, 1, 4), (128, 1, 8), (256, 1, 8), (64, 16, 4), (128, 16, 4), (128, 16, 8), (128, 32, 8))


def main() -> None:
    device = torch.device("cuda")
    copy = copy_bandwidth(device)
    print(f"copy {copy / 1e12:.2f} TB/s")
    for heads in [int(word) for word in sys.argv[1:]] or [128, 64, 16, 0]:
        if heads:
            _decodes(heads, copy, device)
        else:
            _scores(copy, device)


def _decodes(heads: int, copy: float, device: torch.device) -> None:
    shape = SHAPES[1] if heads == 64 else SHAPES[0]
    tiles = [Tile(*tile) for tile in TILES[heads]]
    precompile([variants.attend("bfloat16", shape, tile) for tile in tiles])
    for seqs in (64, 8, 1):
        made = batch((8192,) * seqs, heads, shape, TOP_K, torch.bfloat16, device)
        moved = made.kv_b.nbytes + 2 * seqs * TOP_K * (shape.rank + shape.rope)
        print(f"{heads} heads, {seqs} x {TOP_K}, now {variants.tile_of(architecture(), heads)}")
        _report(
            list(itertools.product(tiles, SPLITS)), partial(_decode_time, made), partial(_share_of_copy, moved, copy)
        )


def _decode_time(made: Batch, trial: tuple[Tile, int]) -> float:
    tile, part = trial
    with mock.patch.multiple(triton, _tile=lambda *_: tile, split=lambda _: part):
        return median_s(lambda: triton.sparse_mla(*made, 0.07, len(made.query)), 30)


def _scores(copy: float, device: torch.device) -> None:
    """Of decodes by tiles for one query, of a prefill by the others; the choice is in the time."""
    tiles = [indexer_variants.Tile(*tile) for tile in SCORED]
    precompile([indexer_variants.score(architecture(), 64, tile, mxfp4=False) for tile in tiles])
    for queries, contexts in (((1,) * 64, (8192,) * 64), ((2048,), (32768,))):
        made = queries_and_keys(Shape(queries, contexts, 64, TOP_K), device)
        name = "DECODE_TILE" if max(queries) == 1 else "TILE"

        print(f"scores of {len(queries)} x {queries[0]} of {contexts[0]}")
        fitting = [tile for tile in tiles if (tile.queries == 1) == (name == "DECODE_TILE")]
        _report(
            fitting,
            partial(_score_time, made, name),
            partial(_share_of_copy, sum(contexts) * key_bytes(128), copy),
        )


def _score_time(made: Queries, name: str, tile: indexer_variants.Tile) -> float:
    with mock.patch.object(indexer_variants, name, tile):
        return median_s(lambda: indexer.indexer(*made, TOP_K), 30)


if __name__ == "__main__":
    main()
