"""The native engine on a GPU against transformers on the same GPU, family by family."""

from __future__ import annotations

import random

import pytest
import torch

from tests.parity.conftest import generate, make_engine, oracle, tokens  # noqa: F401 - oracle is a fixture
from tests.tiny import FAMILIES, write_checkpoint

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def prompts(count: int) -> dict[str, list[int]]:
    rng = random.Random(5)
    return {f"r{i}": [rng.randrange(6, 512) for _ in range((3, 20, 61)[i % 3])] for i in range(count)}


@pytest.fixture(autouse=True)
def _no_tf32():
    """The comparison is about the engine; TF32 would round both sides differently."""
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.parametrize("family", FAMILIES)
def test_64_greedy_tokens_are_equal_in_float32(tmp_path, oracle, family):  # noqa: F811
    checkpoint = write_checkpoint(tmp_path / "model", family, seed=3)
    model = oracle(checkpoint).cuda()
    asked = prompts(6)
    together = generate(make_engine(checkpoint, device="cuda:0"), asked)
    for name, prompt in asked.items():
        expected = model.generate(
            torch.tensor([prompt]).cuda(), do_sample=False, max_new_tokens=64, pad_token_id=0, eos_token_id=None
        )
        assert tokens(together[name]) == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.03), ("float16", 0.003)])
@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_stays_near_transformers(tmp_path, oracle, family, dtype, tolerance):  # noqa: F811
    checkpoint = write_checkpoint(tmp_path / "model", family, dtype=dtype, seed=6, scale=0.1)
    prompt = prompts(3)["r2"]
    engine = make_engine(checkpoint, dtype=dtype, device="cuda:0")
    (output,) = generate(engine, {"r": prompt}, max_tokens=1, logprobs=512)["r"]
    with torch.inference_mode():
        logits = oracle(checkpoint, getattr(torch, dtype)).cuda()(torch.tensor([prompt]).cuda()).logits[0, -1]
    expected = torch.log_softmax(logits.float().cpu(), -1)
    found = torch.empty(512)
    for token, logprob in output.logprobs[0].top:
        found[token] = logprob
    assert (found - expected).abs().mean() < tolerance
