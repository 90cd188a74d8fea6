"""The native engine on a GPU against transformers on the same GPU, family by family, in every format of weights and
cache."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import pytest
import torch

from appliance.engine.engine import Engine
from kernels.catalogue import OPS
from tests.parity.conftest import distribution, generate, greedy, make_engine, oracle, prompts, tokens  # noqa: F401
from tests.tiny import FAMILIES, aligned, block_fp8, write_checkpoint, write_plain_twin
from tests.tiny_shapes import LATENT

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

LENGTHS = (3, 20, 61)
# On an H100 the log probabilities of DeepSeek V3 in float16 are 0.0026 from those in float32, transformers' 0.0034, and
# both 0.0032 from each other.
TOLERANCES = {"bfloat16": 0.03, "float16": 0.004}


@pytest.fixture(autouse=True)
def _no_tf32():
    """The comparison is about the engine; TF32 would round both sides differently."""
    torch.backends.cuda.matmul.allow_tf32 = False


# Of MiniMax-M2's heads half is turned, said in the way that all versions of transformers read.
HALF_TURNED = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}


def sizes(family: str, **changes: Any) -> dict[str, Any]:
    """Those that the kernels take."""
    own = {"rotary_dim": 32, "rope_parameters": HALF_TURNED} if family == "minimax_m2" else {}
    return aligned(family) | own | changes


def difference(engine: Engine, other: Callable[[list[int]], torch.Tensor]) -> float:
    """The mean difference of the log probabilities, in the middle one of nine prompts: where a router's scores are
    nearly equal, rounding sends a token to another expert, and that prompt says nothing about the rest."""
    asked = prompts(9, LENGTHS).values()
    return statistics.median(float((distribution(engine, prompt) - other(prompt)).abs().mean()) for prompt in asked)


def expected(model: Any) -> Callable[[list[int]], torch.Tensor]:
    def answer(prompt: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits = model(torch.tensor([prompt], device=model.device)).logits[0, -1]
        return torch.log_softmax(logits.float().cpu(), -1)

    return answer


@pytest.mark.parametrize("family", FAMILIES)
def test_64_greedy_tokens_are_equal_in_float32(tmp_path, oracle, family):  # noqa: F811
    checkpoint = write_checkpoint(tmp_path / "model", family, seed=3, **sizes(family))
    asked = prompts(6, LENGTHS)
    together = {
        name: tokens(outputs) for name, outputs in generate(make_engine(checkpoint, device="cuda:0"), asked).items()
    }
    assert {len(written) for written in together.values()} == {64}
    assert together == greedy(oracle(checkpoint).cuda(), asked, together)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_stays_near_transformers(tmp_path, oracle, family, dtype):  # noqa: F811
    """Prompts whole and in chunks; and every op that has a kernel of its own gets it."""
    checkpoint = write_checkpoint(tmp_path / "model", family, dtype=dtype, seed=6, scale=0.1, **sizes(family))
    engine = make_engine(checkpoint, dtype=dtype, device="cuda:0", max_num_batched_tokens=32)
    own = {op.name for op in OPS if any(backend.name == "triton" for backend in op.of("native"))}
    assert not [name for name, backend in engine.loaded.selection.items() if name in own and backend == "torch"]
    assert difference(engine, expected(oracle(checkpoint, getattr(torch, dtype)).cuda())) < TOLERANCES[dtype]


@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_with_sizes_that_no_kernel_has(tmp_path, oracle, family):  # noqa: F811
    """The smallest sizes of the CPU's tests: where a kernel cannot serve, another backend does."""
    own: dict[str, Any] = {"rope_parameters": HALF_TURNED} if family == "minimax_m2" else {}
    checkpoint = write_checkpoint(tmp_path / "model", family, dtype="bfloat16", seed=6, scale=0.1, **own)
    engine = make_engine(checkpoint, dtype="bfloat16", device="cuda:0")
    assert difference(engine, expected(oracle(checkpoint, torch.bfloat16).cuda())) < TOLERANCES["bfloat16"]


@pytest.mark.parametrize("family", FAMILIES)
def test_block_scaled_weights_stay_near_what_their_numbers_give(tmp_path, oracle, family):  # noqa: F811
    """Activations are rounded to FP8 as well, each group of 128 by itself, which the other side does not do."""
    config = sizes(family, quantization_config=block_fp8(family))
    checkpoint = write_checkpoint(tmp_path / "model", family, dtype="bfloat16", seed=6, scale=0.05, **config)
    model = oracle(write_plain_twin(checkpoint, tmp_path / "twin"), torch.bfloat16).cuda()
    engine = make_engine(checkpoint, dtype="bfloat16", device="cuda:0")
    assert engine.loaded.selection["fp8_linear"] != "torch"
    assert difference(engine, expected(model)) < 0.1


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in LATENT])
def test_a_cache_in_8_bits_stays_near_the_full_one(tmp_path, family):
    checkpoint = write_checkpoint(tmp_path / "model", family, dtype="bfloat16", seed=6, scale=0.1, **sizes(family))
    values: dict[str, Any] = {"dtype": "bfloat16", "device": "cuda:0", "max_num_batched_tokens": 32}
    full = make_engine(checkpoint, **values)
    small = make_engine(checkpoint, **values, kv_cache_dtype="float8_e4m3fn")
    assert difference(small, lambda prompt: distribution(full, prompt)) < 0.2
