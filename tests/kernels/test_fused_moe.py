"""Mixture of experts: Triton, interpreted, against plain torch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.cases import error
from kernels.catalogue import FUSED_MOE
from kernels.context import Context
from kernels.fp8_linear import triton as fp8_linear
from kernels.fp8_linear.reference import dequantise, quantise
from kernels.fp8_linear.rounded import Rounded
from kernels.fused_moe import reference, sort, triton, variants
from kernels.fused_moe.cases import Shape, call, cases
from kernels.gated_activation.reference import gated_activation
from kernels.launch import launching_for
from kernels.moe_routing import Routing
from kernels.moe_routing.triton import moe_routing
from kernels.selection import choose
from tests.kernels.recorded import recorded

CPU = torch.device("cpu")


def _cases():
    """Every tile of every kind of weight, and every activation, but not each with each, for time's sake."""
    for arch, dtype, fp8_blocks, activation in (
        (90, "bfloat16", (128, 128), "silu"),
        (90, "float16", None, "gelu"),
        (80, "float16", (128, 128), "gelu_tanh"),
    ):
        context = Context("cuda", dtype=dtype, fp8_blocks=fp8_blocks, activation=activation, num_experts=3,
                          experts_per_token=2)  # fmt: skip
        yield from (pytest.param(arch, case, id=f"sm_{arch}-{case.name}") for case in cases(arch, context))


@pytest.mark.parametrize(("arch", "case"), list(_cases()))
def test_triton_agrees_with_the_reference(arch, case):
    with launching_for(arch):
        (result,) = case.run(triton.fused_moe, CPU)
    (expected,) = case.run(reference.fused_moe, CPU)
    assert error(result, expected) <= case.tolerance


def rounded_moe(x, weights, ids, gate_up, down, gate_up_scale, down_scale, activation="silu", limit=None):
    """What is promised where activations are multiplied in FP8: the reference with those of both products rounded."""

    def rounded(x):
        values, scale = quantise(x)
        return values.float() * scale.repeat_interleave(128, -1)[:, : x.shape[1]]

    out = torch.zeros(x.shape)
    for expert in range(gate_up.shape[0]):
        tokens, choice = (ids == expert).nonzero(as_tuple=True)
        first = dequantise(gate_up[expert], gate_up_scale[expert], torch.float32)
        second = dequantise(down[expert], down_scale[expert], torch.float32)
        inner = gated_activation(rounded(x[tokens]) @ first.T, activation, limit).to(x.dtype)
        out.index_add_(0, tokens, rounded(inner) @ second.T * weights[tokens, choice, None])
    return out.to(x.dtype)


@pytest.mark.parametrize("tokens", [1, 17, 45, 130])
def test_rounded_activations_are_multiplied_closely(tokens):
    """One for each tile: the unrounded reference is too far away to show a small mistake."""
    run = call(Shape(tokens, 2, 3, 272, 256), torch.bfloat16, fp8=True)
    (result,), (expected,) = run(triton.fused_moe, CPU), run(rounded_moe, CPU)
    assert error(result, expected) <= 1e-2


@pytest.mark.parametrize("tokens", [1, 17])
@pytest.mark.parametrize("experts", [8, 64, 256])
def test_experts_without_tokens_do_nothing(tokens, experts):
    run = call(Shape(tokens, 4, experts, 32, 16), torch.bfloat16, fp8=False)
    assert error(*run(triton.fused_moe, CPU), *run(reference.fused_moe, CPU)) <= 1e-2


@pytest.mark.parametrize("experts", [8, 500])
@pytest.mark.parametrize("pairs", [1, 17, 512, 513, 1025, 1600])
@pytest.mark.parametrize("block_m", [16, 128])
def test_pairs_are_sorted_and_cut_into_blocks(experts, pairs, block_m):
    """Stable, each pair once, each block of one expert and no larger than asked for, one after the other."""
    ids = torch.randint(experts, (pairs, 1), generator=torch.Generator().manual_seed(pairs), dtype=torch.int32)
    _check_sorted(ids, experts, block_m)


@pytest.mark.parametrize("pairs", [1, 40, 1040])
def test_all_pairs_of_one_expert_are_sorted(pairs):
    _check_sorted(torch.full((pairs // 2 + 1, 2), 5, dtype=torch.int32), 8, 16)


def _check_sorted(ids, experts, block_m):
    order, blocks = sort.sort_by_expert(ids, experts, block_m)
    assert order.tolist() == ids.flatten().sort(stable=True).indices.tolist()
    number, rows = int(blocks[0, 0]), blocks[1:]
    assert number <= len(rows)
    end = 0
    for expert, first, last, _ in rows[:number].tolist():
        assert first == end
        assert 0 < last - first <= block_m
        assert (ids.flatten()[order[first:last]] == expert).all()
        end = last
    assert end == ids.numel()
    assert number == sum(-(-int((ids == expert).sum()) // block_m) for expert in range(experts))


@pytest.mark.parametrize("arch", [80, 90, 120])
def test_the_cases_launch_every_variant(arch):
    with launching_for(arch), recorded([triton, sort, fp8_linear]) as launched:
        for case in cases(arch):
            case.run(triton.fused_moe, CPU)
    assert launched == set(variants.variants(arch))


@pytest.mark.parametrize(("fp8_blocks", "mxfp4"), [(None, False), ((128, 128), False), ((128, 128), True)])
def test_a_model_launches_only_what_is_declared_for_it(fp8_blocks, mxfp4):
    model = Context(
        "cuda", dtype="bfloat16", num_experts=16, experts_per_token=4, fp8_blocks=fp8_blocks, mxfp4_experts=mxfp4
    )
    with launching_for(90), recorded([triton, sort, fp8_linear]) as launched:
        for tokens in (1, 7, 60, 200, 300, 1000, 5000):
            call(Shape(tokens, 4, 16, 128, 128), torch.bfloat16, fp8=model.fp8_experts)(triton.fused_moe, CPU)
        for case in cases(90, model):
            case.run(triton.fused_moe, CPU)
    assert launched == set(variants.variants(90, model))


def test_there_is_room_for_every_way_to_spread_the_tokens():
    for pairs in (1, 7, 16, 100):
        for block_m in (16, 64):
            for experts in (1, 8, 64):
                # The most blocks: one pair for each of the other experts, the rest for one.
                others = min(pairs, experts) - 1
                most = others + -(-(pairs - others) // block_m)
                assert variants.most_blocks(pairs, experts, block_m) >= most


def test_a_model_whose_experts_would_share_scales_is_left_to_torch():
    """In FP8 a size of 192 has gate and up in one block; in 16 bits there are no blocks."""
    shape = Context("cuda", (9, 0), dtype="bfloat16", hidden_size=256, num_experts=8, experts_per_token=2)
    for size, fp8_blocks, backend in ((192, (128, 128), "torch"), (256, (128, 128), "triton"), (192, None, "triton")):
        choice = choose(FUSED_MOE, replace(shape, moe_intermediate_size=size, fp8_blocks=fp8_blocks))
        assert choice.backend.name == backend
        assert choice.verdicts[0].usable == (backend == "triton")


def test_nan_in_one_token_stays_there():
    shape = Shape(5, 2, 3, 32, 16)

    def spoiled(x, *rest):
        x[3] = torch.nan
        return triton.fused_moe(x, *rest)

    (result,), (expected,) = (call(shape, torch.bfloat16, fp8=False)(f, CPU) for f in (spoiled, triton.fused_moe))
    assert result[3].isnan().all()
    others = [0, 1, 2, 4]
    assert torch.equal(result[others], expected[others])


def test_no_tokens_give_nothing():
    (result,) = call(Shape(0, 2, 3, 32, 16), torch.bfloat16, fp8=False)(triton.fused_moe, CPU)
    assert result.shape == (0, 32)


@pytest.mark.parametrize("tokens", [17, 130])
def test_rows_that_were_rounded_before_give_the_same(tokens):
    """Of tiles that multiply rows as they are, and of those that are given them rounded."""
    run = call(Shape(tokens, 2, 3, 272, 256), torch.bfloat16, fp8=True)
    (expected,) = run(triton.fused_moe, CPU)
    (result,) = run(lambda x, *rest: triton.fused_moe(Rounded(x, *fp8_linear.quantise(x)), *rest), CPU)
    assert torch.equal(result, expected)


def test_pairs_that_routing_sorted_are_not_sorted_again():
    logits = torch.randn(7, 64, generator=torch.Generator().manual_seed(1))
    with recorded([triton, sort]) as launched:
        routed = moe_routing(logits, Routing(4), fp8_experts=False)
        weights = torch.empty(64, 64, 32, dtype=torch.bfloat16), torch.empty(64, 32, 32, dtype=torch.bfloat16)
        triton.fused_moe(torch.empty(7, 32, dtype=torch.bfloat16), *routed[:2], *weights, by_expert=routed.by_expert)
    assert {variant.kernel.partition(":")[2] for variant in launched} == {"plain_product_kernel", "sum_kernel"}
