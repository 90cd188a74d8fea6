"""The ops of gated delta layers at Qwen3-Next's shape: prompts of 8,192 tokens, and a decode of 64 sequences.

flash-linear-attention's kernels, the best open ones in Triton, stand beside ours where the package `fla` is installed.
They neither keep the state in rows nor take it in place.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.causal_conv import reference as torch_causal_conv
from kernels.causal_conv import triton as causal_conv
from kernels.causal_conv.cases import without_cache
from kernels.delta_rule import reference as torch_delta_rule
from kernels.delta_rule import triton as delta_rule
from kernels.delta_rule.cases import Inputs, Shape, inputs, states
from kernels.gated_norm import reference as torch_gated_norm
from kernels.gated_norm import triton as gated_norm
from kernels.paged_attention.metadata import AttentionMetadata
from tests.gpu.bench.row import Row

DTYPE = torch.bfloat16
KEY_HEADS, HEADS, DIM = 16, 32, 128
CHANNELS = (2 * KEY_HEADS + HEADS) * DIM
PROMPT, DECODE = 8192, 64
NO_SLOWER = 1.0


class Batch(NamedTuple):
    given: Inputs
    state: Tensor
    rows: Tensor
    metadata: AttentionMetadata


def rows(device: torch.device) -> Iterator[Row]:
    yield _prefill(device, (PROMPT,), NO_SLOWER)
    yield _prefill(device, (PROMPT // 8,) * 8, None)
    yield _prefill(device, (PROMPT * 4,), None)
    for seqs in (DECODE, 1):
        yield _decode(device, seqs)
    for lens in ((PROMPT,), (1,) * DECODE):
        yield _conv(device, lens)
    for tokens in (PROMPT, DECODE):
        yield _norm(device, tokens)


def batch(device: torch.device, lens: tuple[int, ...]) -> Batch:
    shape = Shape(lens, KEY_HEADS, HEADS, DIM, DIM)
    state = states(shape, len(lens) + 1, device)
    return Batch(
        inputs(shape, DTYPE, device), state, torch.arange(len(lens), device=device), without_cache(lens, device)
    )


def _prefill(device: torch.device, lens: tuple[int, ...], goal: float | None) -> Row:
    made = batch(device, lens)
    run = _calls(made)
    if importlib.util.find_spec("fla") is not None:
        run["fla"] = _fla("chunk", made)
    against = "fla" if "fla" in run else None
    label = f"{len(lens)} x {lens[0]} prefill"
    return Row("delta_rule", label, run, goal=goal if against else None, goal_against=against if goal else None)


def _decode(device: torch.device, seqs: int) -> Row:
    made = batch(device, (1,) * seqs)
    run = _calls(made)
    if importlib.util.find_spec("fla") is not None:
        run["fla"] = _fla("fused_recurrent", made)
    return Row("delta_rule", f"{seqs} x 1 decode", run, bytes=2 * seqs * made.state[0].nbytes)


def _calls(made: Batch) -> dict[str, Callable[[], object]]:
    return {
        name: functools.partial(module.delta_rule, *made.given, made.state, made.rows, made.metadata)
        for name, module in (("triton", delta_rule), ("torch", torch_delta_rule))
    }


def _fla(form: str, made: Batch) -> Callable[[], object]:
    """Its sequences are as long as one another, so that it needs no index of them."""
    import fla.ops.gated_delta_rule as fla  # type: ignore[import-not-found]

    function = getattr(fla, f"{form}_gated_delta_rule")
    count = len(made.metadata.query_lens)
    query, key, value, a, b = (x.unflatten(0, (count, -1)).contiguous() for x in made.given[:5])

    def call() -> object:
        return function(
            query, key, value, g=a, beta=b, initial_state=made.state[:count], output_final_state=True,
            use_qk_l2norm_in_kernel=True, use_beta_sigmoid_in_kernel=True, use_gate_in_kernel=True,
            A_log=made.given.a_log, dt_bias=made.given.dt_bias,
        )  # fmt: skip

    return torch.no_grad()(call)


def _conv(device: torch.device, lens: tuple[int, ...]) -> Row:
    x = torch.randn(sum(lens), CHANNELS + HEADS * DIM, device=device, dtype=DTYPE)[:, :CHANNELS]
    weight = torch.randn(CHANNELS, 4, device=device, dtype=DTYPE)
    state = torch.zeros(len(lens) + 1, CHANNELS, 3, device=device, dtype=DTYPE)
    arguments = x, weight, state, torch.arange(len(lens), device=device), without_cache(lens, device)
    run = {
        name: functools.partial(module.causal_conv, *arguments)
        for name, module in (("triton", causal_conv), ("torch", torch_causal_conv))
    }
    moved = 2 * sum(lens) * CHANNELS * DTYPE.itemsize + 2 * len(lens) * state[0].nbytes
    return Row("causal_conv", f"{len(lens)} x {lens[0]} x {CHANNELS}", run, bytes=moved)


def _norm(device: torch.device, tokens: int) -> Row:
    x, gate = (torch.randn(tokens, HEADS, DIM, device=device, dtype=DTYPE) for _ in range(2))
    weight = torch.randn(DIM, device=device, dtype=DTYPE)
    run = {
        name: functools.partial(module.gated_norm, x, gate, weight, 1e-6)
        for name, module in (("triton", gated_norm), ("torch", torch_gated_norm))
    }
    return Row("gated_norm", f"{tokens} x {HEADS} x {DIM}", run, bytes=3 * x.nbytes)
