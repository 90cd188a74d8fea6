"""Expert routing: Triton, interpreted, against plain torch."""

from __future__ import annotations

import pytest
import torch

from kernels.cases import error
from kernels.context import Context
from kernels.moe_routing import Routing, reference, softplus, triton, variants
from kernels.moe_routing.cases import cases
from tests.kernels.recorded import recorded

CPU = torch.device("cpu")


@pytest.mark.parametrize("case", [*cases(90)], ids=lambda case: case.name)
def test_triton_agrees_with_the_reference(case):
    for result, expected in zip(case.run(triton.moe_routing, CPU), case.run(reference.moe_routing, CPU), strict=True):
        assert error(result, expected) <= case.tolerance


@pytest.mark.parametrize("function", [triton.moe_routing, reference.moe_routing])
def test_the_lower_id_wins_among_equals(function):
    weights, ids, _ = function(torch.zeros(3, 64), Routing(4))
    assert ids.tolist() == [[0, 1, 2, 3]] * 3
    assert torch.allclose(weights, torch.full((3, 4), 0.25))


@pytest.mark.parametrize("groups", [0, 1])
def test_no_group_and_one_group_both_choose_from_all_experts(groups):
    """MiniMax-M2 has `n_group` 0 or none: its routing must not divide by a number of groups."""
    logits = torch.randn(17, 256, generator=torch.Generator().manual_seed(1))
    routing = Routing(8, "sigmoid", num_groups=groups, top_groups=groups)
    (weights, ids, _), (expected, expected_ids, _) = (
        f(logits, routing) for f in (triton.moe_routing, reference.moe_routing)
    )
    assert ids.equal(expected_ids)
    assert error(weights, expected) <= 1e-6


def test_a_token_of_nan_still_goes_to_experts_that_exist():
    logits = torch.full((2, 8), torch.nan)
    logits[1, 5] = 1.0
    _, ids, _ = triton.moe_routing(logits, Routing(2))
    assert ((ids >= 0) & (ids < 8)).all()
    assert ids[1, 0] == 5


def test_no_tokens_are_routed_to_nothing():
    weights, ids, _ = triton.moe_routing(torch.empty(0, 8), Routing(2))
    assert weights.shape == ids.shape == (0, 2)


@pytest.mark.parametrize("arch", [80, 90])
def test_the_cases_launch_every_variant(arch):
    with recorded([triton, softplus]) as launched:
        for case in cases(arch):
            case.run(triton.moe_routing, CPU)
    assert launched == set(variants.variants(arch))


def test_a_model_launches_only_what_is_declared_for_it():
    model = Context("cuda", dtype="bfloat16", num_experts=60, experts_per_token=4, num_expert_groups=4)
    with recorded([triton]) as launched:
        for case in cases(90, model):
            case.run(triton.moe_routing, CPU)
    assert launched == set(variants.variants(90, model))
    assert all("GROUPED=True" in variant.name for variant in launched)


def test_the_root_of_softplus_and_experts_chosen_before():
    """As transformers has DeepSeek V4's routers: a bias counts in the choice alone, a table in place of both."""
    from transformers import DeepseekV4Config
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4HashRouter, DeepseekV4TopKRouter

    config = DeepseekV4Config(
        hidden_size=16, num_hidden_layers=2, n_routed_experts=8, num_experts_per_tok=3, vocab_size=9
    )
    x, tokens = torch.randn(5, 16, generator=torch.Generator().manual_seed(1)), torch.tensor([[0, 8, 3, 3, 5]])
    routing = Routing(3, "sqrtsoftplus", scale=1.5)
    for router in (DeepseekV4TopKRouter(config), DeepseekV4HashRouter(config)):
        torch.nn.init.normal_(router.weight)
        bias = chosen = None
        if isinstance(router, DeepseekV4HashRouter):
            router.tid2eid.copy_(torch.stack([torch.randperm(8)[:3] for _ in range(9)]))
            chosen = router.tid2eid[tokens[0]]
            _, expected, ids = router(x[None], tokens)
        else:
            bias = router.e_score_correction_bias.normal_()
            _, expected, ids = router(x[None])
        weights, found, _ = reference.moe_routing(x @ router.weight.T, routing, bias, chosen)
        order, wanted = found.argsort(-1), ids.argsort(-1)
        assert found.gather(1, order).tolist() == ids.gather(1, wanted).tolist()
        torch.testing.assert_close(weights.gather(1, order), expected.gather(1, wanted), atol=1e-6, rtol=1e-5)
