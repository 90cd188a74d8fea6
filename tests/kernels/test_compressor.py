"""Compressed entries: torch against their definition, token by token, however the tokens are cut into steps."""

from __future__ import annotations

import pytest
import torch

from kernels.cases import randn
from kernels.compressor.reference import Compression, compressor
from kernels.paged_attention.metadata import AttentionMetadata
from kernels.rms_norm.reference import normed
from kernels.rotary_cache.frequencies import cos_sin_table, inverse_frequencies
from kernels.window_entries.reference import turn_last

CPU = torch.device("cpu")
DIM, ROPE, BLOCK = 16, 8, 128
TABLE = cos_sin_table(*inverse_frequencies(ROPE, 10_000.0), 512, torch.float32)


def compression(ratio: int) -> Compression:
    width = DIM * (1 + (ratio == 4))
    base = randn((ratio, width), torch.float32, CPU, seed=9)
    return Compression(ratio, ratio == 4, base, 1 + randn((DIM,), torch.float32, CPU, seed=8) / 8, 1e-6)


def expected(projected: torch.Tensor, wanted: Compression, entry: int) -> torch.Tensor:
    """One entry of a whole sequence."""
    values, gates = projected.chunk(2, dim=-1)
    ratio, start = wanted.ratio, entry * wanted.ratio
    own = slice(start, start + ratio)
    value, gate = values[own, -DIM:], gates[own, -DIM:] + wanted.base[:, -DIM:]
    if wanted.overlap and entry:
        before = slice(start - ratio, start)
        value = torch.cat((values[before, :DIM], value))
        gate = torch.cat((gates[before, :DIM] + wanted.base[:, :DIM], gate))
    made = (torch.softmax(gate, 0) * value).sum(0, keepdim=True)
    made = normed(made, wanted.norm, wanted.eps)
    turn_last(made.unsqueeze(1), torch.tensor([start]), TABLE)
    return made[0]


@pytest.mark.parametrize("ratio", [4, 128])
@pytest.mark.parametrize("cuts", [(300,), (3, 130, 1, 1, 1, 1, 1, 1, 161), (127, 1, 1, 127, 1, 43), (1,) * 300])
def test_entries_follow_their_definition(ratio, cuts):
    """Of two sequences side by side, of which the second is always one token long and another one each step."""
    wanted = compression(ratio)
    kept, width = ratio * (1 + wanted.overlap), wanted.base.shape[1]
    projected = randn((300, 2 * width), torch.float32, CPU, seed=1)
    tail = torch.full((4, kept, 2 * width), torch.nan)
    pages = torch.full((6, BLOCK // ratio, DIM), torch.nan)
    tables = torch.tensor([[5, 0, 3], [4, 4, 4]], dtype=torch.int32)
    done = 0
    for count in cuts:
        other = randn((1, 2 * width), torch.float32, CPU, seed=done + 7)
        lens = [1, count]
        positions = torch.cat((torch.tensor([0]), torch.arange(done, done + count)))
        starts = torch.tensor([0, 1, 1 + count], dtype=torch.int32)
        metadata = AttentionMetadata(
            lens, [1, done + count], 1 if count > 1 else 2, starts,
            torch.tensor([1, done + count], dtype=torch.int32), tables.flip(0), positions,
        )  # fmt: skip
        step = torch.cat((other, projected[done : done + count]))
        compressor(step, wanted, positions, TABLE, tail, torch.tensor([1, 2]), pages, metadata, torch.float32)
        done += count
    rows = BLOCK // ratio
    for entry in range(300 // ratio):
        found = pages[tables[0, entry // rows], entry % rows]
        torch.testing.assert_close(found, expected(projected, wanted, entry), atol=1e-5, rtol=1e-5)
    unwritten = pages[tables[0, (300 // ratio) // rows], (300 // ratio) % rows :]
    assert unwritten.isnan().all()
    assert pages[[1, 2, 4]].isnan().all()
    assert tail[[0, 3]].isnan().all()
