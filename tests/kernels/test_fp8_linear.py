"""Block-scaled FP8 linear: Triton, interpreted, against plain torch."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from kernels.cases import error
from kernels.context import Context
from kernels.fp8_linear import GROUP, reference, triton, variants
from kernels.fp8_linear.cases import ROUNDED_TOLERANCE, call, cases
from kernels.fp8_linear.rounded import Rounded
from kernels.gated_activation.reference import gated_activation
from kernels.launch import launching_for
from tests.kernels.recorded import recorded

CPU = torch.device("cpu")
FEW_PROGRAMS = 8


def _cases():
    """One dtype each, for time's sake, and as of a GPU that few programs keep busy: what is chosen for many tokens is
    then chosen for fewer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(variants, "PROGRAMS", FEW_PROGRAMS)
        for arch, dtype in ((80, "float16"), (90, "bfloat16")):
            for case in cases(arch, Context("cuda", dtype=dtype, fp8_blocks=(128, 128))):
                yield pytest.param(arch, case, id=f"sm_{arch}-{case.name}")


def rounded_linear(x, weight, scale, bias=None, groups=1):
    """What is promised where activations are multiplied in FP8."""
    if groups > 1:
        parts = zip(x.chunk(groups, -1), weight.chunk(groups), scale.chunk(groups), strict=True)
        return torch.cat([rounded_linear(*part) for part in parts], dim=-1)
    rounded, by = reference.quantise(x)
    wide = (rounded.float() * by.repeat_interleave(128, -1)[:, : x.shape[1]]).to(torch.float32)
    bias = None if bias is None else bias.float()
    return torch.nn.functional.linear(wide, reference.dequantise(weight, scale, torch.float32), bias).to(x.dtype)


@pytest.mark.parametrize(("arch", "case"), list(_cases()))
def test_triton_agrees_with_the_reference(arch, case, monkeypatch):
    """With activations as they are, and closely where they are rounded in the same way. Those of few tokens are not."""
    monkeypatch.setattr(variants, "PROGRAMS", FEW_PROGRAMS)
    with launching_for(arch):
        (result,) = case.run(triton.fp8_linear, CPU)
    (expected,) = case.run(reference.fp8_linear, CPU)
    assert error(result, expected) <= case.tolerance
    if case.tolerance == ROUNDED_TOLERANCE:
        (expected,) = case.run(rounded_linear, CPU)
        assert error(result, expected) <= 4e-3


def test_activations_are_rounded_as_by_the_reference():
    x = torch.randn(5, 2192, generator=torch.Generator().manual_seed(1)).bfloat16()
    x[2, 128:256] = 0.0
    rounded, scale = triton.quantise(x)
    expected, expected_scale = reference.quantise(x)
    assert torch.equal(scale.T, expected_scale)
    assert torch.equal(rounded.view(torch.uint8), expected.view(torch.uint8))


def test_every_byte_is_decoded_to_its_number():
    """sm_80 and sm_86 have no FP8: all 254 numbers, among them the subnormal ones, come out exactly."""
    numbers = torch.arange(256).to(torch.uint8)
    numbers[[0x7F, 0xFF]] = 0  # NaN, see below
    weight = numbers.view(torch.float8_e4m3fn).repeat(16, 1)
    x = torch.eye(256, dtype=torch.bfloat16)
    with launching_for(80):
        result = triton.fp8_linear(x, weight, torch.ones(1, 2))
    assert torch.equal(result, weight.to(torch.bfloat16).T)


@pytest.mark.parametrize("byte", [0x7F, 0xFF])
def test_nan_among_the_weights_is_not_hidden(byte):
    """Also where they are decoded by integers: NaN reveals a damaged model."""
    weight = torch.ones(32, 128).to(torch.float8_e4m3fn)
    weight.view(torch.uint8)[3, 5] = byte
    with launching_for(80):
        result = triton.fp8_linear(torch.ones(2, 128).bfloat16(), weight, torch.ones(1, 1))
    assert result.isnan().tolist() == [[output == 3 for output in range(32)]] * 2


@pytest.mark.parametrize("tokens", [1, 17])
def test_a_split_product_is_the_same_however_often(tokens):
    run = call(tokens, 64, 2064, torch.bfloat16, bias=True)
    assert torch.equal(*run(triton.fp8_linear, CPU), *run(triton.fp8_linear, CPU))


def test_splits_keep_the_gpu_busy_and_have_work():
    for arch in variants.TILES:
        for tokens in (1, 16, 64, 300, 8192):
            for outputs, inner in ((1024, 4096), (4096, 14336), (28672, 4096), (4096, 512)):
                if variants.are_few(arch, tokens):
                    few = variants.FEW[arch]
                    splits = variants.splits_of_few(few, outputs, inner, 132)
                    assert inner / splits >= 512
                    assert splits == 1 or (splits - 1) * outputs / few.outputs < 3 * 132
                    continue
                tile = variants.tile_of(arch, tokens, outputs)
                splits = variants.splits_of(tile, tokens, outputs, inner)
                assert inner / splits >= 512
                assert splits == 1 or variants.splittable(tile)


def test_every_part_of_a_split_has_work():
    """Qwen3-4B's `down` has 76 groups of 128: in parts of 7, which 12 would need, 11 cover all."""
    tile = variants.Tile(16, 64, 128, 4, 5)
    assert variants.splits_of(tile, 1, 2560, 9728) == 11
    for groups in range(1, 240):
        for tiles in range(variants.PROGRAMS // variants.MOST_SPLITS, variants.PROGRAMS + 2):
            for inner in (groups * GROUP, groups * GROUP - 112):
                splits = variants.splits_of(tile, 1, 2 * tile.block_n * tiles, inner)
                steps = -(-groups // splits)
                assert (splits - 1) * steps < groups
                assert splits == 1 or steps >= 4


@pytest.mark.parametrize("arch", variants.TILES)
def test_few_tokens_get_a_tile_of_few_however_many_outputs_there_are(arch):
    """Llama 3 70B's gate and up together have enough outputs to fill the GPU with the largest tile."""
    *small, large = variants.TILES[arch]
    assert variants.are_few(arch, 16) == (arch >= 90)
    assert not variants.are_few(arch, 17)
    assert [tile.block_m for tile in small] == ([32, 64] if arch >= 90 else [16, 32, 64])
    for outputs in (256, 57344):
        for tile in small:
            for tokens in (tile.block_m // 2 + 1, tile.block_m):
                assert variants.tile_of(arch, tokens, outputs) == tile
    assert variants.tile_of(arch, 65, 57344) == large
    assert variants.tile_of(arch, 65, 256) == small[-1]


def test_no_tokens_give_nothing():
    (result,) = call(0, 32, 32, torch.bfloat16, bias=False)(triton.fp8_linear, CPU)
    assert result.shape == (0, 32)


@pytest.mark.parametrize("arch", variants.TILES)
def test_the_cases_launch_every_variant(arch):
    with launching_for(arch), recorded([triton]) as launched:
        for case in cases(arch):
            case.run(triton.fp8_linear, CPU)
    assert launched == set(variants.variants(arch))


def test_a_model_launches_only_what_is_declared_for_it():
    model = Context("cuda", dtype="bfloat16", fp8_blocks=(128, 128))
    with launching_for(90), recorded([triton]) as launched:
        for tokens in (1, 2, 16, 17, 40, 64, 65, 500, 3000, 8192):
            for outputs, inner in ((128, 4096), (4096, 128)):
                call(tokens, outputs, inner, torch.bfloat16, bias=False)(triton.fp8_linear, CPU)
    assert launched <= set(variants.variants(90, model))


@pytest.mark.parametrize("tokens", [17, 67])
def test_rows_that_were_rounded_before_give_the_same(tokens):
    """Of tiles that round rows themselves, and of those that are given them rounded."""
    run = call(tokens, 80, 272, torch.bfloat16, bias=True)
    (expected,) = run(triton.fp8_linear, CPU)
    (result,) = run(lambda x, *rest: triton.fp8_linear(Rounded(x, *triton.quantise(x)), *rest), CPU)
    assert torch.equal(result, expected)


@pytest.mark.parametrize(("arch", "tokens", "outputs"), [(90, 16, 512), (90, 17, 512), (90, 3, 320), (89, 3, 512)])
def test_few_tokens_are_activated_by_the_product_itself(arch, tokens, outputs):
    """Unless gate and up share scales; others call what was chosen for that."""
    called: list[tuple[str, float | None]] = []

    def activate(product, activation, limit):
        called.append((activation, limit))
        return gated_activation(product, activation, limit)

    run = call(tokens, outputs, 128, torch.bfloat16, bias=False, ending=("silu", 0.5))
    with launching_for(arch):
        (found,) = run(partial(triton.fp8_linear, activate=activate), CPU)
    (expected,) = run(reference.fp8_linear, CPU)
    assert called == ([] if (arch, tokens, outputs) == (90, 16, 512) else [("silu", 0.5)])
    assert error(found, expected) <= ROUNDED_TOLERANCE
