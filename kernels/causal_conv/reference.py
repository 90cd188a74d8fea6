"""Causal convolution in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.chains.rounds import Chains, Rounds
from kernels.paged_attention.metadata import AttentionMetadata


def causal_conv(
    x: Tensor,
    weight: Tensor,
    state: Tensor,
    rows: Tensor,
    metadata: AttentionMetadata,
    chains: Chains | None = None,
    kept: Tensor | None = None,
) -> Tensor:
    """silu(sum over i of weight[c, i] * x[t - W + 1 + i, c]): each channel over its own last W inputs.

    Args:
        x: [T, C], of any stride between tokens.
        weight: [C, W], in the dtype of `x`.
        state: [R, C, W - 1], in the dtype of `x`: the last W - 1 inputs of the sequence that has the row, oldest first,
            zeros before its first token. Updated *in place*, by drafts not.
        rows: [S], int64, each sequence's row of `state`. Sequences that are padding may share one, whose contents are
            then undefined.
        metadata: which tokens belong to which sequence; its context lengths are read for chains only, its cache is not.
        chains: where some of those that decode may be drafts (`kernels.chains`).
        kept: [R, places, C], with `chains`: the inputs of drafts. Updated *in place*.

    Returns:
        [T, C], new and contiguous. Sums and SiLU are taken in float32.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    decodes = metadata.num_decodes
    if decodes and chains is not None and kept is not None:
        rounds = Rounds(chains, metadata.seq_lens, decodes, kept.shape[1])
        _decode_chains(x, weight, state, kept, rows, rounds, out)
    elif decodes:
        inputs = torch.cat((state[rows[:decodes]], x[:decodes, :, None]), dim=-1)  # [S, C, W]
        state[rows[:decodes]] = inputs[..., 1:]
        out[:decodes] = _silu((inputs.float() * weight.float()).sum(-1))
    start = decodes
    for row, length in zip(rows[decodes:].tolist(), metadata.query_lens[decodes:], strict=True):
        end = start + length
        _prefill(x[start:end], weight, state[row], out[start:end])
        start = end
    return out


def _decode_chains(
    x: Tensor, weight: Tensor, state: Tensor, kept: Tensor, rows: Tensor, rounds: Rounds, out: Tensor
) -> None:
    first, weight = rounds.first, weight.float()
    rows = rows[first]
    before = state[rows]  # [chains, C, W - 1]
    for chosen, places in rounds.replayed():
        before[chosen] = torch.cat((before[chosen, :, 1:], kept[rows[chosen], places, :, None]), dim=-1)
    inputs = torch.cat((before, x[first, :, None]), dim=-1)
    state[rows] = before = inputs[..., 1:]
    out[first] = _silu((inputs.float() * weight).sum(-1)).to(out.dtype)
    for (chosen, tokens), places in rounds.drafts():
        inputs = torch.cat((before[chosen], x[tokens, :, None]), dim=-1)
        before[chosen] = inputs[..., 1:]
        kept[rows[chosen], places] = x[tokens]
        out[tokens] = _silu((inputs.float() * weight).sum(-1)).to(out.dtype)


def _prefill(x: Tensor, weight: Tensor, state: Tensor, out: Tensor) -> None:
    """One sequence, whole or a chunk that continues one."""
    before = weight.shape[1] - 1
    inputs = torch.cat((state.t(), x))  # [W - 1 + N, C]
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for i in range(before + 1):
        total.addcmul_(inputs[i : i + len(x)].float(), weight[:, i].float())
    state.copy_(inputs[len(x) :].t())
    out.copy_(_silu(total))


def _silu(x: Tensor) -> Tensor:
    return torch.nn.functional.silu(x, inplace=True)
