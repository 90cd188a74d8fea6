"""FlashInfer's backends on a GPU against the references, sealed in a cast's modules for heads of 128 in bfloat16.

INGOT_FLASHINFER_CAST names the folder that holds `flashinfer/<module>/<module>.so` for this GPU.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from kernels import flashinfer as sealing
from kernels.cases import TOLERANCES, error, randn
from kernels.cast.architectures import architecture_named
from kernels.fp8_linear.rounded import rows_of
from kernels.paged_attention.cases import Shape, batch
from kernels.paged_attention.reference import paged_attention as attention_reference
from kernels.rms_norm.reference import rms_norm as norm_reference
from kernels.seal import NotCast

CAST = os.environ.get("INGOT_FLASHINFER_CAST")
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.skipif(CAST is None, reason="needs a cast of FlashInfer's modules, named in INGOT_FLASHINFER_CAST"),
]

GPU = torch.device("cuda")
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn

SHAPES = [
    Shape((1,), (1,), heads=32, kv_heads=8, head_dim=128),
    Shape((1,) * 64, tuple(range(1, 4096, 64)), heads=32, kv_heads=8, head_dim=128),
    Shape((1,) * 3, (5, 4000, 70), heads=8, kv_heads=8, head_dim=128),
    Shape((1,) * 3, (5, 4000, 70), heads=64, kv_heads=8, head_dim=128),
    Shape((1,) * 3, (5, 4000, 70), heads=28, kv_heads=4, head_dim=128),
    Shape((123, 1000), (123, 1000), heads=32, kv_heads=8, head_dim=128),
    Shape((2, 300), (2000, 1300), heads=32, kv_heads=8, head_dim=128),
    Shape((1, 1, 45, 2), (300, 7, 150, 2), heads=40, kv_heads=8, head_dim=128, block_size=32),
]


@pytest.fixture(scope="module", autouse=True)
def _sealed():
    architecture = architecture_named("sm_{}{}".format(*torch.cuda.get_device_capability()))
    sealing.seal(Path(CAST), architecture)


@pytest.mark.parametrize("cache_dtype", [BF16, FP8])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention(shape, cache_dtype):
    from kernels.paged_attention.flashinfer import paged_attention

    if cache_dtype == FP8 and shape.heads == shape.kv_heads:
        pytest.skip("its module is not carried")
    scales = (0.5, 2.0) if cache_dtype == FP8 else (1.0, 1.0)
    made = batch(shape, BF16, cache_dtype, GPU)
    arguments = (*made, 128**-0.5, None, None, None, *scales)
    result = paged_attention(*arguments)
    assert error(result, attention_reference(*arguments)) <= TOLERANCES[BF16]
    assert torch.equal(paged_attention(*arguments), result), "a second layer of the step"


def test_steps_that_follow_each_other_without_waiting_do_not_change_each_other():
    from kernels.paged_attention.flashinfer import paged_attention

    steps = [batch(shape, BF16, BF16, GPU) for shape in SHAPES[:2] * 4]
    results = [paged_attention(*step, 128**-0.5) for step in steps]
    for step, result in zip(steps, results, strict=True):
        assert error(result, attention_reference(*step, 128**-0.5)) <= TOLERANCES[BF16]


def test_a_module_that_is_not_cast_is_named():
    from kernels.paged_attention.flashinfer import paged_attention

    made = batch(Shape((1,), (20,), heads=8, kv_heads=2, head_dim=64), BF16, BF16, GPU)
    with pytest.raises(NotCast, match="head_dim_qk_64"):
        paged_attention(*made, 0.125)


@pytest.mark.parametrize("shape", [(5, 4096), (1, 64), (123, 123 * 8), (7, 32, 128)])
@pytest.mark.parametrize("with_residual", [False, True])
def test_norm(shape, with_residual):
    from kernels.rms_norm.flashinfer import rms_norm

    x, weight = (
        randn((shape[0], 2 * shape[1], *shape[2:]), BF16, GPU, 1)[:, : shape[1]],
        randn(shape[-1:], BF16, GPU, 2),
    )
    residual = randn(shape, BF16, GPU, 3) if with_residual else None
    expected_residual = None if residual is None else residual.clone()
    before = x.clone()
    result = rms_norm(x, weight, 1e-6, residual)
    expected = norm_reference(x, weight, 1e-6, expected_residual)
    assert error(rows_of(result), rows_of(expected)) <= TOLERANCES[BF16]
    assert torch.equal(x, before)
    assert residual is None or torch.equal(residual, expected_residual)
