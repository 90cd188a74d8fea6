"""The gated delta rule: torch against the recurrence as it is written and Hugging Face's two forms; Triton,
interpreted, against torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from kernels.cases import Case, error
from kernels.catalogue import DELTA_RULE
from kernels.causal_conv.cases import without_cache
from kernels.chains.rounds import Chains
from kernels.context import Context
from kernels.delta_rule import reference, triton
from kernels.delta_rule.cases import Inputs, Shape, cases, inputs, kept_of, states
from kernels.delta_rule.workspace import _BY_BACKEND, workspace_bytes
from kernels.launch import launching_for
from tests.kernels.padded import padded
from tests.kernels.peak import Peak

CPU = torch.device("cpu")
ODD = (1, 3, 63, 64, 65, 130)  # around the length of a chunk


class Backend(NamedTuple):
    """A function, what it is given, and how far it may be from the recurrence (see `kernels.cases.error`)."""

    delta_rule: Callable[..., Tensor]
    dtype: torch.dtype
    key_dim: int
    tolerance: float

    def given(self, lens: tuple[int, ...], key_heads: int = 1, heads: int = 2) -> tuple[Inputs, Tensor]:
        """Inputs and a row of the state for each sequence and three more."""
        shape = Shape(lens, key_heads, heads, self.key_dim, 32)
        return inputs(shape, self.dtype, CPU), states(shape, len(lens) + 3, CPU)

    def agree(self, result: Tensor, expected: Tensor) -> None:
        assert error(result, expected) <= self.tolerance


BACKENDS = pytest.mark.parametrize(
    "backend",
    [
        Backend(reference.delta_rule, torch.float32, 16, 1e-5),
        Backend(triton.delta_rule, torch.float16, 64, 2e-3),
        Backend(triton.delta_rule, torch.bfloat16, 64, 1.5e-2),
    ],
    ids=["torch", "triton float16", "triton bfloat16"],
)


def by_definition(given: Inputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """Token by token and head by head, in float64: the result [N, Hv, dv], and the state behind the last token."""
    query, key, value, a, b, a_log, dt_bias = (x.double() for x in given)
    state = state.double().clone()
    group = value.shape[1] // key.shape[1]
    out = torch.empty_like(value)
    for t in range(len(value)):
        for head in range(value.shape[1]):
            q, k = (x[t, head // group] / (x[t, head // group].square().sum() + 1e-6).sqrt() for x in (query, key))
            forget = torch.exp(-a_log[head].exp() * torch.log1p(torch.exp(a[t, head] + dt_bias[head])))
            beta = 1 / (1 + torch.exp(-b[t, head]))
            s = forget * state[head]
            state[head] = s + torch.outer(k, beta * (value[t, head] - s.T @ k))
            out[t, head] = state[head].T @ q * q.numel() ** -0.5
    return out, state


@BACKENDS
def test_a_mixed_batch_agrees_with_the_recurrence(backend):
    """Decodes and prefills of odd lengths; each sequence's row of the state, and no other, moves on."""
    lens, rows = (1, 1, 1, 3, 63, 64, 65, 130), torch.tensor([9, 0, 4, 2, 7, 1, 3, 6])
    given, state = backend.given(lens)
    before = state.clone()
    out = backend.delta_rule(*given, state, rows, without_cache(lens, CPU))
    assert out.is_contiguous()
    assert out.dtype == backend.dtype
    start = 0
    for row, length in zip(rows.tolist(), lens, strict=True):
        expected, after = by_definition(given.part(start, start + length), before[row])
        backend.agree(out[start : start + length], expected)
        backend.agree(state[row], after)
        start += length
    for row in (5, 8, 10):
        assert torch.equal(state[row], before[row])


@BACKENDS
@pytest.mark.parametrize("cuts", [(64, 66), (1, 129), (3, 1, 62, 64), (127, 1, 1, 1), (63, 67)], ids=str)
def test_a_sequence_in_chunks_equals_the_whole(backend, cuts):
    given, state = backend.given((sum(cuts),))
    whole_state, rows = state.clone(), torch.tensor([1])
    whole = backend.delta_rule(*given, whole_state, rows, without_cache((sum(cuts),), CPU))
    parts, start = [], 0
    for length in cuts:
        metadata = without_cache((length,), CPU)
        parts.append(backend.delta_rule(*given.part(start, start + length), state, rows, metadata))
        start += length
    backend.agree(torch.cat(parts), whole)
    backend.agree(state, whole_state)


@BACKENDS
def test_nan_stays_in_its_sequence_and_in_padding(backend):
    """One sequence's state and another's token are damaged; padding shares the last row, which is damaged too."""
    lens, rows = (1, 1, 1, 1, 1, 5, 66, 70), torch.tensor([0, 1, 2, 10, 10, 3, 4, 5])
    given, state = backend.given(lens)
    metadata = without_cache(lens, CPU)
    expected_state = state.clone()
    expected = backend.delta_rule(*given, expected_state, rows, metadata)
    state[1], state[4], state[10] = torch.nan, torch.nan, torch.nan
    given.key[0], given.value[6] = torch.nan, torch.nan
    out = backend.delta_rule(*given, state, rows, metadata)
    starts = metadata.query_start_loc.tolist()
    for seq in (2, 7):
        assert torch.equal(out[starts[seq] : starts[seq + 1]], expected[starts[seq] : starts[seq + 1]])
        assert torch.equal(state[rows[seq]], expected_state[rows[seq]])
    for seq in (0, 1, 5, 6):
        assert out[starts[seq] : starts[seq + 1]].isnan().any()


@pytest.mark.parametrize(("prefills", "tokens"), [(2, 69), (5, 200)], ids=["just so many", "more"])
def test_a_padded_batch_gives_the_same_to_the_bit(prefills, tokens):
    """Whatever the host says of its lengths, in a captured step."""
    backend = Backend(triton.delta_rule, torch.float16, 64, 0)
    lens, rows = (1, 1, 3, 66), torch.tensor([3, 0, 4, 2])
    given, state = backend.given(lens)
    metadata = without_cache(lens, CPU)
    wide = padded(metadata, 4, prefills, tokens)
    own, graphed = state.clone(), state.clone()
    expected = backend.delta_rule(*given, own, rows, metadata)
    spread = Inputs(*[wide.tokens(x) if x.ndim > 1 else x for x in given])
    out = backend.delta_rule(*spread, graphed, wide.sequences(rows, 6), wide.metadata)
    assert torch.equal(out[wide.rows], expected)
    assert torch.equal(graphed[:6], own[:6])


@BACKENDS
def test_equal_keys_that_nothing_forgets(backend):
    """The system that a chunk solves is then the worst there is: powers of its matrix reach 10^18."""
    given, state = backend.given((128,), 1, 1)
    given.key[:] = given.key[:1].clone()
    given.a_log.fill_(-20.0)
    given.b.fill_(10.0)
    expected, after = by_definition(given, state[0])
    out = backend.delta_rule(*given, state, torch.tensor([0]), without_cache((128,), CPU))
    backend.agree(out, expected)
    backend.agree(state[0], after)


@pytest.mark.parametrize("form", ["chunk", "recurrent"])
@pytest.mark.parametrize("tokens", ODD)
def test_hugging_face_agrees(form, tokens):
    from transformers.models.qwen3_next import modeling_qwen3_next as published

    rule = getattr(published, f"torch_{form}_gated_delta_rule")
    shape = Shape((tokens,), 2, 4, 16, 32)
    query, key, value, a, b, a_log, dt_bias = given = inputs(shape, torch.float32, CPU)
    state = states(shape, 1, CPU)
    decay = -a_log.exp() * torch.nn.functional.softplus(a + dt_bias)
    expected, after = rule(
        query[None], key[None], value[None], decay[None], b.sigmoid()[None], initial_state=state.clone(),
        output_final_state=True, use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    out = reference.delta_rule(*given, state, torch.tensor([0]), without_cache((tokens,), CPU))
    torch.testing.assert_close(out, expected[0], atol=2e-4, rtol=2e-4)
    torch.testing.assert_close(state, after, atol=2e-4, rtol=2e-4)


def _cases() -> list[tuple[int, Case]]:
    """Of architectures with long chunks and with short ones; chains of drafts know no chunks."""
    return [(arch, case) for arch in (90, 86) for case in cases(arch) if arch == 90 or "chains" not in case.name]


@pytest.mark.parametrize(("arch", "case"), _cases(), ids=lambda value: getattr(value, "name", str(value)))
def test_triton_agrees_with_torch(arch: int, case: Any):
    with launching_for(arch):
        found = case.run(triton.delta_rule, CPU)
    for result, expected in zip(found, case.run(reference.delta_rule, CPU), strict=True):
        assert error(result, expected) <= case.tolerance


@pytest.mark.parametrize(
    ("lens", "drafts"),
    [((1,) * 30, 0), ((700,), 0), ((1, 1, 300, 64), 0), ((2,) * 40, 0), ((1,) * 30, 2), ((1,) * 30, 1)],
    ids=str,
)
@pytest.mark.parametrize("name", ["torch", "triton"])
def test_a_step_stays_within_its_workspace(monkeypatch, name, lens, drafts):
    """Chains of a known token and `drafts`, behind as many that were accepted, too."""
    module = {"torch": reference, "triton": triton}[name]
    monkeypatch.setattr(triton, "launch", lambda *_: None)
    shape = Shape(lens, 2, 4, 64, 32)
    given, state, rows = inputs(shape, torch.bfloat16, CPU), states(shape, len(lens), CPU), torch.arange(len(lens))
    metadata = without_cache(lens, CPU)
    context = Context(
        "cuda", (9, 0), "bfloat16", gated_delta_head_dim=64, gated_delta_value_dim=32, gated_delta_key_heads=2,
        gated_delta_value_heads=4,
    )  # fmt: skip
    chained: tuple[Any, ...] = ()
    if drafts:
        numbers = ([0 if row % (1 + drafts) else 1 + drafts for row in range(len(lens))], [drafts] * len(lens))
        kept = kept_of(shape, len(lens), drafts, torch.bfloat16, CPU)
        chained = Chains(*(torch.tensor(each, dtype=torch.int32) for each in numbers)), kept
        metadata = replace(metadata, seq_lens=metadata.seq_lens + 5)
    with Peak() as peak:
        result = module.delta_rule(*given, state, rows, metadata, *chained)
    assert peak.bytes - result.nbytes <= workspace_bytes(name, context, sum(lens), len(lens))


def test_every_backend_of_the_engine_says_what_it_works_in():
    assert set(_BY_BACKEND) == {backend.name for backend in DELTA_RULE.of("native") if backend.function}
