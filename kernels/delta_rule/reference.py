"""The gated delta rule in plain torch: token by token for sequences that decode, in chunks for prefills."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from kernels.chains.rounds import Chains, Rounds
from kernels.delta_rule import CHUNK, NORM_EPS
from kernels.paged_attention.metadata import AttentionMetadata


class Kept(NamedTuple):
    """What a state takes of drafts, as it was given, by its row and at its place (`kernels.chains`)."""

    keys: Tensor  # [R, places, Hk, dk]
    values: Tensor  # [R, places, Hv, dv]
    gates: Tensor  # [R, places, 2, Hv]: a and b


def delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    rows: Tensor,
    metadata: AttentionMetadata,
    chains: Chains | None = None,
    kept: Kept | None = None,
) -> Tensor:
    """The recurrence of `kernels.delta_rule`, over each sequence's own tokens.

    Args:
        query, key: [T, Hk, dk], of any stride between tokens; normalised here to a length of 1, and queries then
            multiplied by dk^-0.5.
        value: [T, Hv, dv], likewise strided; Hv is a multiple of Hk, neighbouring value heads share a key head.
        a, b: [T, Hv], as projected, of any stride between tokens: g = -exp(a_log) softplus(a + dt_bias) and
            beta = sigmoid(b), in float32.
        a_log, dt_bias: [Hv], float32.
        state: [R, Hv, dk, dv], float32: S of the sequence that has the row, zeros before its first token. Updated *in
            place*, by drafts not.
        rows: [S], int64, each sequence's row of `state`. Sequences that are padding may share one, whose contents are
            then undefined.
        metadata: which tokens belong to which sequence; its context lengths are read for chains only, its cache is not.
        chains: where some of those that decode may be drafts (`kernels.chains`).
        kept: with `chains`, in the dtype of `query`: what is kept of drafts. Updated *in place*.

    Returns:
        [T, Hv, dv], new and contiguous, in the dtype of `query`.
    """
    dtype, scale = query.dtype, query.shape[-1] ** -0.5
    group = value.shape[1] // key.shape[1]
    given_key, given_value = key, value
    query, key = (_normalised(x).repeat_interleave(group, dim=1) for x in (query, key))
    query, value = query.mul_(scale), value.float()
    decay, beta = _gates(a, b, a_log, dt_bias)
    out = torch.empty(value.shape, dtype=torch.float32, device=value.device)
    given = query, key, value, decay, beta
    decodes = metadata.num_decodes
    if decodes and chains is not None and kept is not None:
        rounds = Rounds(chains, metadata.seq_lens, decodes, kept.keys.shape[1])
        _replay(kept, a_log, dt_bias, state, rows, rounds)
        _decode_chains(given, state, rows, rounds, out)
        for (chosen, tokens), places in rounds.drafts():
            at = rows[rounds.first[chosen]], places
            kept.keys[at], kept.values[at] = given_key[tokens], given_value[tokens]
            kept.gates[at] = torch.stack((a[tokens], b[tokens]), dim=1)
    elif decodes:
        found = state[rows[:decodes]]
        query, key, value, decay, beta = (x[:decodes] for x in given)
        out[:decodes] = _decode(query, key, value, decay, beta, found)
        state[rows[:decodes]] = found
    start = decodes
    for row, length in zip(rows[decodes:].tolist(), metadata.query_lens[decodes:], strict=True):
        end = start + length
        query, key, value, decay, beta = (x[start:end] for x in given)
        out[start:end] = _prefill(query, key, value, decay, beta, state[row])
        start = end
    return out.to(dtype)


def _gates(a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """The logarithm of the decay, and beta."""
    return softplus(a.float() + dt_bias).mul_(-torch.exp(a_log)), torch.sigmoid(b.float())


def _replay(kept: Kept, a_log: Tensor, dt_bias: Tensor, state: Tensor, rows: Tensor, rounds: Rounds) -> None:
    """What the drafts that were accepted change."""
    group = kept.values.shape[2] // kept.keys.shape[2]
    for chosen, places in rounds.replayed():
        own = rows[rounds.first[chosen]]
        key, value, gates = (each[own, places] for each in kept)
        key, found = _normalised(key).repeat_interleave(group, dim=1), state[own]
        a, b = gates.unbind(1)
        decay, beta = _gates(a, b, a_log, dt_bias)
        _decode(key, key, value.float(), decay, beta, found)
        state[own] = found


def _decode_chains(given: tuple[Tensor, ...], state: Tensor, rows: Tensor, rounds: Rounds, out: Tensor) -> None:
    """`given` is as of `_decode`, of all tokens; known tokens change `state`."""
    found = state[rows[rounds.first]]
    query, key, value, decay, beta = (x[rounds.first] for x in given)
    out[rounds.first] = _decode(query, key, value, decay, beta, found)
    state[rows[rounds.first]] = found
    for (chosen, tokens), _ in rounds.drafts():
        ahead = found[chosen]
        query, key, value, decay, beta = (x[tokens] for x in given)
        out[tokens] = _decode(query, key, value, decay, beta, ahead)
        found[chosen] = ahead


def _normalised(x: Tensor) -> Tensor:
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + NORM_EPS)


def _decode(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, state: Tensor) -> Tensor:
    """One token of several sequences: `query` and `key` [S, H, dk], `value` [S, H, dv], `decay` and `beta` [S, H], and
    `state` [S, H, dk, dv], updated in place."""
    state.mul_(decay.exp()[..., None, None])
    error = value - (key.unsqueeze(-2) @ state).squeeze(-2)
    state.addcmul_(key.unsqueeze(-1), (error * beta.unsqueeze(-1)).unsqueeze(-2))
    return (query.unsqueeze(-2) @ state).squeeze(-2)


def _prefill(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, state: Tensor) -> Tensor:
    """One sequence: `query` and `key` [N, H, dk], `value` [N, H, dv], `decay` and `beta` [N, H], and `state`
    [H, dk, dv], updated in place."""
    length = len(query)
    query, key, value = (_chunked(x) for x in (query, key, value))  # [chunks, H, CHUNK, d]
    beta = _chunked(beta.unsqueeze(-1))  # [chunks, H, CHUNK, 1]
    total = _chunked(decay.unsqueeze(-1)).cumsum(-2)
    between = total - total.mT  # G_i - G_j, which is at most 0 where j <= i
    between = between.masked_fill_(~torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=key.device).tril(), -torch.inf)
    between.exp_()
    within = (query @ key.mT).mul_(between)
    # Only what lies below the diagonal is read.
    system = (key @ key.mT).mul_(between).mul_(beta)
    right = torch.cat((value, key * total.exp()), dim=-1).mul_(beta)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    corrections, weights = (x.contiguous() for x in solved.split((value.shape[-1], key.shape[-1]), dim=-1))
    last = total[..., -1:, :]
    query = query.mul_(total.exp())
    key = key.mul_((last - total).exp())
    last = last.exp()
    out = value  # each chunk's is read by now
    for i in range(len(value)):
        correction = corrections[i].baddbmm_(weights[i], state, alpha=-1)
        torch.bmm(query[i], state, out=out[i]).baddbmm_(within[i], correction)
        state.mul_(last[i]).baddbmm_(key[i].mT, correction)
    tokens: Tensor = out.transpose(1, 2).flatten(0, 1)
    return tokens[:length]


def _chunked(x: Tensor) -> Tensor:
    """[N, H, d] as [chunks, H, CHUNK, d], filled up with zeros: tokens that neither decay nor correct anything."""
    chunks: Tensor = pad(x, (0, 0, 0, 0, 0, -len(x) % CHUNK)).unflatten(0, (-1, CHUNK))
    return chunks.transpose(1, 2).clone(memory_format=torch.contiguous_format)
