"""The convolution of gated delta layers: torch and Triton, interpreted, against the definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.cases import error, randn
from kernels.causal_conv import reference, triton
from kernels.causal_conv.cases import cases, without_cache
from tests.kernels.padded import padded

CPU = torch.device("cpu")
BACKENDS = pytest.mark.parametrize(
    ("causal_conv", "dtype", "tolerance"),
    [
        (reference.causal_conv, torch.float32, 1e-5),
        (triton.causal_conv, torch.float16, 1e-3),
        (triton.causal_conv, torch.bfloat16, 1e-2),
    ],
    ids=["torch", "triton float16", "triton bfloat16"],
)


def by_definition(x: Tensor, weight: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Token by token: `x` [N, C] after `before` [C, W - 1]; the result and what comes before the next token."""
    out = []
    for token in x.double():
        window = torch.cat((before.double(), token[:, None]), dim=1)
        total = (window * weight.double()).sum(1)
        out.append(total / (1 + torch.exp(-total)))
        before = window[:, 1:]
    return torch.stack(out), before


@BACKENDS
def test_a_mixed_batch_agrees_with_the_definition(causal_conv, dtype, tolerance):
    """Decodes and prefills, some shorter than the window; each sequence's row of the state, and no other, moves on."""
    lens, rows = [1, 1, 2, 64, 3, 70], torch.tensor([4, 0, 6, 2, 1, 7])
    x = randn((sum(lens), 48), dtype, CPU, seed=1)[:, 8:]
    weight = randn((40, 4), dtype, CPU, seed=2)
    state = randn((9, 40, 3), dtype, CPU, seed=3)
    before = state.clone()
    out = causal_conv(x, weight, state, rows, without_cache(lens, CPU))
    assert out.is_contiguous()
    start = 0
    for row, length in zip(rows.tolist(), lens, strict=True):
        expected, after = by_definition(x[start : start + length], weight, before[row])
        assert error(out[start : start + length], expected) <= tolerance
        assert torch.equal(state[row].double(), after)
        start += length
    for row in (3, 5, 8):
        assert torch.equal(state[row], before[row])


@BACKENDS
@pytest.mark.parametrize("cuts", [[64, 66], [1, 129], [3, 1, 62, 64], [127, 1, 1, 1], [2, 128]], ids=str)
def test_a_sequence_in_chunks_equals_the_whole(causal_conv, dtype, tolerance, cuts):
    x = randn((sum(cuts), 16), dtype, CPU, seed=1)
    weight = randn((16, 4), dtype, CPU, seed=2)
    state, whole_state = torch.zeros(2, 16, 3, dtype=dtype), torch.zeros(2, 16, 3, dtype=dtype)
    rows = torch.tensor([1])
    whole = causal_conv(x, weight, whole_state, rows, without_cache([len(x)], CPU))
    parts = [causal_conv(part, weight, state, rows, without_cache([len(part)], CPU)) for part in x.split(cuts)]
    assert error(torch.cat(parts), whole) <= tolerance
    assert torch.equal(state, whole_state)


@pytest.mark.parametrize(("prefills", "tokens"), [(3, 69), (5, 200)], ids=["just so many", "more"])
def test_a_padded_batch_gives_the_same_to_the_bit(prefills, tokens):
    """Whatever the host says of its lengths, in a captured step."""
    lens, rows = [1, 1, 2, 64, 3], torch.tensor([4, 0, 6, 2, 1])
    x, weight = randn((sum(lens), 40), torch.float16, CPU, seed=1), randn((40, 4), torch.float16, CPU, seed=2)
    own = randn((9, 40, 3), torch.float16, CPU, seed=3)
    graphed, metadata = own.clone(), without_cache(lens, CPU)
    wide = padded(metadata, 4, prefills, tokens)
    expected = triton.causal_conv(x, weight, own, rows, metadata)
    out = triton.causal_conv(wide.tokens(x), weight, graphed, wide.sequences(rows, 8), wide.metadata)
    assert torch.equal(out[wide.rows], expected)
    assert torch.equal(graphed[:8], own[:8])


@BACKENDS
def test_nan_stays_in_its_sequence_and_in_padding(causal_conv, dtype, tolerance):
    """One sequence's state and another's token are damaged; padding shares the last row, which is damaged too."""
    lens = [1, 1, 1, 1, 1, 5, 66, 70]
    rows = torch.tensor([0, 1, 2, 7, 7, 3, 4, 5])
    x = randn((sum(lens), 16), dtype, CPU, seed=1)
    weight = randn((16, 4), dtype, CPU, seed=2)
    state = randn((8, 16, 3), dtype, CPU, seed=3)
    metadata = without_cache(lens, CPU)
    expected_state = state.clone()
    expected = causal_conv(x, weight, expected_state, rows, metadata)
    state[1], state[4], state[7] = torch.nan, torch.nan, torch.nan
    x[0], x[6] = torch.nan, torch.nan
    out = causal_conv(x, weight, state, rows, metadata)
    starts = metadata.query_start_loc.tolist()
    for seq in (2, 7):
        assert torch.equal(out[starts[seq] : starts[seq + 1]], expected[starts[seq] : starts[seq + 1]])
        assert torch.equal(state[rows[seq]], expected_state[rows[seq]])
    for seq in (0, 1, 5, 6):
        assert out[starts[seq] : starts[seq + 1]].isnan().any()


def test_hugging_face_agrees():
    from transformers.models.qwen3_next.modeling_qwen3_next import causal_conv1d_fn

    x = randn((70, 16), torch.float32, CPU, seed=1)
    weight = randn((16, 4), torch.float32, CPU, seed=2)
    out = reference.causal_conv(x, weight, torch.zeros(1, 16, 3), torch.tensor([0]), without_cache([70], CPU))
    expected = causal_conv1d_fn(x.t()[None], weight, None, "silu")
    torch.testing.assert_close(out, expected[0, :, :70].t(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", list(cases(90)), ids=lambda case: case.name)
def test_triton_agrees_with_torch(case):
    for result, expected in zip(case.run(triton.causal_conv, CPU), case.run(reference.causal_conv, CPU), strict=True):
        assert error(result, expected) <= case.tolerance
