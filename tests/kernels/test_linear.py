"""Linear by oneDNN against plain torch, with weights in either layout."""

from __future__ import annotations

import pytest
import torch

from kernels.cases import TOLERANCES, error, randn
from kernels.context import Context
from kernels.gated_activation.reference import gated_activation
from kernels.launch import launching_for
from kernels.linear import cases as linear_cases
from kernels.linear import onednn, reference, triton, variants
from kernels.linear.cases import cases
from kernels.split_products import arrived
from tests.kernels.recorded import launched_by_cases

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [0, 1, 5, 123])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("prepared", [False, True])
def test_onednn_agrees_with_the_reference(dtype, tokens, bias, prepared):
    x = randn((tokens, 2 * 123), dtype, CPU, seed=1)[:, :123]  # of a wider tensor
    weight, added = randn((77, 123), dtype, CPU, seed=2), randn((77,), dtype, CPU, seed=3) if bias else None
    expected = reference.linear(x.float(), weight.float(), None if added is None else added.float())
    result = onednn.linear(x, onednn.prepare(weight) if prepared else weight, added)
    assert result.dtype == dtype
    assert error(result, expected) <= TOLERANCES[dtype]


FEW_PROCESSORS = 8


def _cases():
    """As of a GPU with few processors: what is chosen for many outputs is then chosen for fewer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear_cases, "MOST_PROCESSORS", FEW_PROCESSORS)
        for arch, dtype in ((90, "bfloat16"), (120, "float16")):
            for case in cases(arch, Context("cuda", dtype=dtype)):
                yield pytest.param(arch, case, id=f"sm_{arch}-{case.name}")


@pytest.mark.parametrize(("arch", "case"), list(_cases()))
def test_triton_agrees_with_the_reference(arch, case, monkeypatch):
    monkeypatch.setattr(triton, "processors", lambda: FEW_PROCESSORS)
    with launching_for(arch):
        (result,) = case.run(triton.linear, CPU)
    (expected,) = case.run(reference.linear, CPU)
    assert error(result, expected) <= case.tolerance


@pytest.mark.parametrize("arch", [80, *variants.TILES])
def test_the_cases_launch_every_variant(arch):
    assert launched_by_cases("linear", arch, None) == set(variants.variants(arch))


@pytest.mark.parametrize("tokens", [3, variants.MOST_TOKENS + 1])
def test_a_product_has_the_place_it_is_given(tokens):
    x, weight = randn((tokens, 4096), torch.float16, CPU, seed=1), randn((70, 4096), torch.float16, CPU, seed=2)
    rows = torch.empty(tokens + 1, 70, dtype=torch.float16)
    for linear in (triton.linear, reference.linear, onednn.linear):
        rows.fill_(torch.nan)
        assert linear(x, weight, out=rows[:-1]).data_ptr() == rows.data_ptr()
        assert error(rows[:-1], reference.linear(x.float(), weight.float())) <= TOLERANCES[torch.float16]
        assert rows[-1].isnan().all()
    packed = onednn.prepare(weight.float())
    rows = rows.float()
    assert onednn.linear(x.float(), packed, out=rows[:-1]).data_ptr() == rows.data_ptr()
    assert error(rows[:-1], reference.linear(x.float(), weight.float())) <= TOLERANCES[torch.float32]


def test_a_split_product_leaves_its_counters_at_zero():
    with launching_for(90):
        x, weight = randn((3, 1152), torch.bfloat16, CPU, seed=1), randn((70, 1152), torch.bfloat16, CPU, seed=2)
        first = triton.linear(x, weight)
        assert torch.equal(triton.linear(x, weight), first)
    assert not arrived(CPU).any()


def test_products_of_many_tokens_or_odd_rows_are_torchs():
    for tokens, inner in ((variants.MOST_TOKENS + 1, 64), (3, 72), (0, 64)):
        x, weight = randn((tokens, inner), torch.bfloat16, CPU, seed=1), randn((5, inner), torch.bfloat16, CPU, seed=2)
        assert torch.equal(triton.linear(x, weight), reference.linear(x, weight))


@pytest.mark.parametrize("linear", [triton.linear, reference.linear, onednn.linear])
def test_a_product_that_does_not_end_with_the_activation_calls_the_chosen_one(linear):
    """Of more tokens than the product itself activates, and everywhere else; whatever its width."""
    called = []

    def activate(product, activation, limit):
        called.append((activation, limit))
        return gated_activation(product, activation, limit)

    tokens = variants.MOST_TOKENS + 1
    x, weight = randn((tokens, 64), torch.bfloat16, CPU, seed=1), randn((24, 64), torch.bfloat16, CPU, seed=2)
    found, expected = linear(x, weight, None, "silu", 7.0, activate), reference.linear(x, weight, None, "silu", 7.0)
    assert called == [("silu", 7.0)]
    assert found.shape == (tokens, 12)
    assert error(found, expected) <= TOLERANCES[torch.bfloat16]


def test_few_tokens_are_activated_by_the_product_itself():
    def never(*_):
        raise AssertionError

    with launching_for(90):
        x, weight = randn((3, 64), torch.bfloat16, CPU, seed=1), randn((32, 64), torch.bfloat16, CPU, seed=2)
        assert triton.linear(x, weight, None, "silu", None, never).shape == (3, 16)


@pytest.mark.parametrize("arch", variants.TILES)
def test_every_processor_has_a_program_and_no_part_is_empty(arch):
    """Of sizes from that of a router to that of a head, wherever rows are long enough to be split."""
    for tokens in (1, 17, 64):
        for outputs in (1, 128, 2048, 4096, 6144, 24576, 151936):
            for inner in (16, 1024, 2048, 5632, 12288):
                tile = variants.tile_of(arch, tokens, outputs, 132)
                splits = variants.splits_of(tile, outputs, inner, 132)
                tiles, steps = -(-outputs // tile.outputs), -(-inner // tile.inner)
                assert (splits - 1) * -(-steps // splits) < steps
                assert splits == 1 or tiles * (splits - 1) < 132
                if steps >= 4 * variants.MOST_SPLITS and tiles * variants.MOST_SPLITS >= 132:
                    assert tiles * splits >= 0.75 * 132
