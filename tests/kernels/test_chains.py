"""Layers with a state, over chains of drafts of which some are rejected: what comes out, and what is carried on, is as
of the accepted tokens one by one."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.cases import error, randn
from kernels.causal_conv import reference as conv_reference
from kernels.causal_conv import triton as conv_triton
from kernels.causal_conv.cases import without_cache
from kernels.chains import places
from kernels.chains.rounds import Chains
from kernels.delta_rule import reference, triton
from kernels.delta_rule.cases import Inputs, Shape, inputs, kept_of, states
from kernels.delta_rule.reference import Kept
from kernels.paged_attention.metadata import AttentionMetadata

CPU = torch.device("cpu")
DRAFTS, LENGTH = 3, 14


class Walk:
    """Two sequences of `LENGTH` tokens in chains: in each step some drafts, of which some are the sequence's own next
    tokens, and the others, of the tokens from `LENGTH` on, are rejected."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._done, self._accepted = [0, 0], [0, 0]

    def __bool__(self) -> bool:
        return any(done < LENGTH for done in self._done)

    def step(self) -> tuple[list[int], list[int], Chains, AttentionMetadata]:
        """Of each row: its token among all, or -1 for one that is to be rejected, and its sequence."""
        tokens, seqs, lens, accepted, seq_lens = [], [], [], [], []
        for seq, done in enumerate(self._done):
            if done == LENGTH:
                continue
            right = self._rng.randrange(min(DRAFTS, LENGTH - done - 1) + 1)
            count = 1 + right + self._rng.randrange(DRAFTS - right + 1)
            for place in range(count):
                tokens.append(seq * LENGTH + done + place if place <= right else -1)
                seqs.append(seq)
                lens.append(count if not place else 0)
                accepted.append(self._accepted[seq])
                seq_lens.append(done + place + 1)
            self._done[seq], self._accepted[seq] = done + 1 + right, right
        metadata = without_cache([1] * len(tokens), CPU)
        metadata = replace(metadata, seq_lens=torch.tensor(seq_lens, dtype=torch.int32))
        chains = Chains(*(torch.tensor(each, dtype=torch.int32) for each in (lens, accepted)))
        return tokens, seqs, chains, metadata


def agree(found: Tensor, expected: Tensor, tolerance: float) -> None:
    assert torch.equal(found, expected) if tolerance == 0 else error(found, expected) <= tolerance


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("delta_rule", "dtype", "tolerance"),
    [(reference.delta_rule, torch.float32, 1e-5), (triton.delta_rule, torch.float16, 0)],
    ids=["torch", "triton"],
)
def test_the_gated_delta_rule(delta_rule, dtype, tolerance, seed):
    shape = Shape((1,) * (2 * LENGTH + DRAFTS), 1, 2, 64, 32)
    given, rows, walk = inputs(shape, dtype, CPU), torch.tensor([1, 0]), Walk(seed)
    state, kept = states(shape, 3, CPU), kept_of(shape, 3, DRAFTS, dtype, CPU)
    kept = Kept(*(each.fill_(torch.nan) for each in kept))
    alone = state.clone()
    alone_out = []
    for token in range(LENGTH):
        both = pick(given, [token, LENGTH + token])
        alone_out.append(delta_rule(*both, alone, rows, without_cache([1, 1], CPU)))
    expected = torch.stack(alone_out, dim=1).flatten(0, 1)
    while walk:
        tokens, seqs, chains, metadata = walk.step()
        out = delta_rule(*pick(given, tokens), state, rows[seqs], metadata, chains, kept)
        for row, token in enumerate(tokens):
            if token >= 0:
                agree(out[row], expected[token], tolerance)


def pick(given: Inputs, tokens: list[int]) -> Inputs:
    rows = torch.tensor(tokens)
    rows[rows < 0] = 2 * LENGTH + torch.arange(int((rows < 0).sum())) % DRAFTS
    return Inputs(*(each[rows] if each.ndim > 1 else each for each in given))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("causal_conv", "dtype", "tolerance"),
    [(conv_reference.causal_conv, torch.float32, 1e-6), (conv_triton.causal_conv, torch.float16, 0)],
    ids=["torch", "triton"],
)
def test_the_convolution(causal_conv, dtype, tolerance, seed):
    x, weight = randn((2 * LENGTH + DRAFTS, 40), dtype, CPU, seed=1), randn((40, 4), dtype, CPU, seed=2)
    state, rows, walk = randn((3, 40, 3), dtype, CPU, seed=3), torch.tensor([1, 0]), Walk(seed)
    kept = torch.full((3, places(DRAFTS), 40), torch.nan, dtype=dtype)
    alone = state.clone()
    alone_out = []
    for token in range(LENGTH):
        both = x[[token, LENGTH + token]]
        alone_out.append(causal_conv(both, weight, alone, rows, without_cache([1, 1], CPU)))
    expected = torch.stack(alone_out, dim=1).flatten(0, 1)
    while walk:
        tokens, seqs, chains, metadata = walk.step()
        out = causal_conv(x[tokens], weight, state, rows[seqs], metadata, chains, kept)
        for row, token in enumerate(tokens):
            if token >= 0:
                agree(out[row], expected[token], tolerance)
