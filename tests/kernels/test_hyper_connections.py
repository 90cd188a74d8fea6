"""mHC: torch against transformers and against the definition, and Triton, interpreted, against torch."""

from __future__ import annotations

import pytest
import torch

from kernels.cases import error, randn
from kernels.mhc_head import cases as head_cases
from kernels.mhc_head import triton as head_triton
from kernels.mhc_head import variants as head_variants
from kernels.mhc_head.reference import mhc_head
from kernels.mhc_post import cases as post_cases
from kernels.mhc_post import reference as post_reference
from kernels.mhc_post import triton as post_triton
from kernels.mhc_post import variants as post_variants
from kernels.mhc_pre import cases as pre_cases
from kernels.mhc_pre import reference as pre_reference
from kernels.mhc_pre import triton as pre_triton
from kernels.mhc_pre import variants as pre_variants
from kernels.mhc_pre.reference import Connections
from kernels.selection import Context
from tests.kernels.recorded import launched_by_cases

CPU = torch.device("cpu")
V4 = Context("cuda", (9, 0), "bfloat16", hidden_size=4096, residual_streams=4)


def drawn(
    streams: int = 4, hidden: int = 24, tokens: int = 5
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    mixed = (2 + streams) * streams
    x = randn((tokens, streams, hidden), torch.float32, CPU, seed=1)
    weight = randn((mixed, streams * hidden), torch.float32, CPU, seed=2) * 0.3
    return x, weight, randn((3,), torch.float32, CPU, seed=3), randn((mixed,), torch.float32, CPU, seed=4)


def test_hugging_face_agrees():
    from transformers import DeepseekV4Config
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4HyperConnection, DeepseekV4HyperHead

    config = DeepseekV4Config(hidden_size=24, num_hidden_layers=2)
    x, weight, scale, base = drawn()
    connection = DeepseekV4HyperConnection(config)
    head = DeepseekV4HyperHead(config)
    with torch.no_grad():
        for parameter, value in zip(
            (connection.fn, connection.scale, connection.base), (weight, scale, base), strict=True
        ):
            parameter.copy_(value)
        for parameter, value in zip(
            (head.hc_fn, head.hc_scale, head.hc_base), (weight[:4], scale[:1], base[:4]), strict=True
        ):
            parameter.copy_(value)
        post, mix, collapsed = connection(x[None])
        last = head(x[None])
    found = pre_reference.mhc_pre(x, weight, scale, base, Connections(1e-6, 1e-6, 20))
    for result, expected in zip(found, (collapsed, post, mix), strict=True):
        torch.testing.assert_close(result, expected[0], atol=2e-6, rtol=1e-5)
    result = mhc_head(x, weight[:4], scale[:1], base[:4], 1e-6, 1e-6)
    torch.testing.assert_close(result, last[0], atol=2e-6, rtol=1e-5)


def test_a_mix_is_doubly_stochastic():
    """Its columns exactly but for eps, its rows nearly, after twenty rounds."""
    _, post, mix = pre_reference.mhc_pre(*drawn(), Connections(1e-6, 1e-6, 20))
    torch.testing.assert_close(mix.sum(1), torch.ones(5, 4), atol=1e-5, rtol=0)
    torch.testing.assert_close(mix.sum(2), torch.ones(5, 4), atol=1e-2, rtol=0)
    assert bool(((post > 0) & (post < 2)).all())


def test_the_next_streams_take_the_first_index_of_the_mix():
    x, streams = randn((2, 8), torch.float32, CPU, seed=1), randn((2, 4, 8), torch.float32, CPU, seed=2)
    post, mix = randn((2, 4), torch.float32, CPU, seed=3), randn((2, 4, 4), torch.float32, CPU, seed=4)
    expected = torch.einsum("tij,tih->tjh", mix, streams) + post[..., None] * x[:, None]
    torch.testing.assert_close(post_reference.mhc_post(x, streams, post, mix), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("case", list(pre_cases.cases(90)), ids=lambda case: case.name)
def test_triton_agrees_before_a_sublayer(case):
    results, expected = (case.run(face.mhc_pre, CPU) for face in (pre_triton, pre_reference))
    for result, wanted in zip(results, expected, strict=True):
        assert error(result, wanted) <= case.tolerance
    for result, wanted in zip(results[1:], expected[1:], strict=True):  # in float32
        assert error(result, wanted) <= 1e-5


@pytest.mark.parametrize("case", list(post_cases.cases(90)), ids=lambda case: case.name)
def test_triton_agrees_behind_a_sublayer(case):
    (result,), (wanted,) = case.run(post_triton.mhc_post, CPU), case.run(post_reference.mhc_post, CPU)
    assert error(result, wanted) <= case.tolerance


@pytest.mark.parametrize("case", list(head_cases.cases(90)), ids=lambda case: case.name)
def test_triton_agrees_behind_the_last_layer(case):
    (result,), (wanted,) = case.run(head_triton.mhc_head, CPU), case.run(mhc_head, CPU)
    assert error(result, wanted) <= case.tolerance


@pytest.mark.parametrize("model", [None, V4], ids=["any model", "V4"])
@pytest.mark.parametrize("arch", [80, 86, 89, 90, 100, 103, 120, 121])
@pytest.mark.parametrize(
    ("op", "declared"), [("mhc_pre", pre_variants), ("mhc_post", post_variants), ("mhc_head", head_variants)]
)
def test_the_cases_launch_all_that_is_declared_and_nothing_else(op, declared, arch, model):
    found = set(declared.variants(arch, model))
    assert launched_by_cases(op, arch, model) == found <= set(declared.variants(arch))
