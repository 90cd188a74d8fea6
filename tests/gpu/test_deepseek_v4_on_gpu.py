"""DeepSeek V4's own kernels against torch, and the engine with them: with graphs as without, and as with torch's
ops."""

from __future__ import annotations

import importlib
import random
from typing import Any

import pytest
import torch

from appliance.protocol import StepKind
from kernels.cases import error, randn
from kernels.compressed_attention.cases import Shape, batch
from kernels.compressed_attention.triton import compressed_attention
from kernels.compressed_attention.variants import WINDOW
from kernels.launch import architecture
from kernels.linear.triton import linear
from tests.configured import engine_config
from tests.gpu.bench.precompile import precompile
from tests.kernels.alone import only
from tests.parity.conftest import distribution, generate, make_engine, tokens
from tests.tiny_deepseek_v4 import QUANTISED, write_deepseek_v4

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

OPS = ("linear", "fp8_linear", "window_entries", "compressor", "index_query", "indexer", "compressed_attention",
       "moe_routing", "fused_moe", "mhc_pre", "mhc_post", "mhc_head")  # fmt: skip
OURS = ("window_entries", "compressor", "index_query", "compressed_attention")
# Heads and entries as published, the rest small; what chooses binds.
SHAPE: dict[str, Any] = {
    "hidden_size": 256, "moe_intermediate_size": 64, "num_attention_heads": 16, "head_dim": 512, "q_lora_rank": 64,
    "qk_rope_head_dim": 64, "o_groups": 4, "index_head_dim": 128, "index_topk": 48, "swiglu_limit": 10.0,
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    found = [
        variant
        for op in OPS
        for variant in importlib.import_module(f"kernels.{op}.variants").variants(architecture())
        if "*fp16" not in variant.arguments and "fp8_product" not in variant.kernel
    ]
    precompile(found)


@pytest.mark.parametrize("op", OPS)
def test_kernels_agree_with_the_reference(op):
    backend, reference = (importlib.import_module(f"kernels.{op}.{name}") for name in ("triton", "reference"))
    for case in importlib.import_module(f"kernels.{op}.cases").cases(architecture()):
        if ("float16" in case.name and "bfloat16" not in case.name) or " FP8 " in case.name:
            continue
        found = case.run(getattr(backend, op), torch.device("cuda"))
        expected = case.run(getattr(reference, op), torch.device("cpu"))
        errors = [error(*pair) for pair in zip(found, expected, strict=True)]
        assert max(errors) <= case.tolerance, f"{case.name}: {errors}"


def test_a_product_of_many_tokens_keeps_its_sums_in_float32():
    """By cuBLAS, as a prefill's are."""
    x, weight = (randn((rows, 4096), torch.bfloat16, torch.device("cuda"), rows) for rows in (300, 576))
    found = linear(x, weight, out=torch.empty(300, 576, device="cuda"))
    assert error(found, x.double() @ weight.double().t()) <= 1e-4


@pytest.mark.parametrize("heads", [16, 64])
def test_a_decode_does_not_depend_on_its_neighbours(heads):
    """To the bit, though more of them share a launch. Its last entry is written again, as it was."""
    made = batch(Shape((1,) * 40, (30, 1400, 700, 9000) * 10, heads, 4, 512), torch.bfloat16, torch.device("cuda"))
    together = compressed_attention(*made, WINDOW)
    for row in range(4):
        assert torch.equal(compressed_attention(*only(made, row), WINDOW)[0], together[row])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_deepseek_v4(tmp_path_factory.mktemp("models") / "model", torch_dtype="bfloat16", **SHAPE)


@pytest.fixture(scope="module")
def in_fp8(tmp_path_factory):
    sizes = SHAPE | QUANTISED | {"o_lora_rank": 128, "moe_intermediate_size": 256}
    return write_deepseek_v4(tmp_path_factory.mktemp("models") / "model", torch_dtype="bfloat16", **sizes)


ENGINE: dict[str, Any] = {
    "dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "device": "cuda:0", "max_num_seqs": 8, "block_size": 256,
    "max_model_len": 2048, "num_blocks": 80, "max_num_batched_tokens": 1024, "num_snapshots": 16,
}  # fmt: skip


def engine(folder, **changes: Any):
    return make_engine(folder, **ENGINE | changes)


@pytest.mark.parametrize(("model", "count"), [("folder", 1), ("folder", 8), ("in_fp8", 8)])
def test_graphs_give_what_single_launches_do(model, count, request):
    folder = request.getfixturevalue(model)
    eager, graphs = engine(folder, enforce_eager=True), engine(folder, enforce_eager=False)
    while graphs.capture_next():
        pass
    rng = random.Random(count)
    asked = {f"{i}": [rng.randrange(6, 512) for _ in range(90 * i + 5)] for i in range(count)}
    expected = {name: tokens(outputs) for name, outputs in generate(eager, asked).items()}
    before = graphs.steps[StepKind.GRAPH]
    assert {name: tokens(outputs) for name, outputs in generate(graphs, asked).items()} == expected
    assert graphs.steps[StepKind.GRAPH] - before == 63


def test_distributions_are_near_those_of_torch(folder):
    """After a prompt that is computed in chunks, and one that is longer than the window."""
    ours = engine(folder, enforce_eager=True, max_num_batched_tokens=100)
    backends = {**engine_config(folder, **ENGINE).backends, **dict.fromkeys(OURS, "torch")}
    torchs = engine(folder, enforce_eager=True, max_num_batched_tokens=100, backends=backends)
    rng = random.Random(7)
    for length in (3, 130, 700):
        prompt = [rng.randrange(6, 512) for _ in range(length)]
        found, expected = distribution(ours, prompt), distribution(torchs, prompt)
        assert (found.exp() - expected.exp()).abs().sum() < 0.1, length
