"""Sparse attention against transformers where the choice of tokens binds: contexts of several times as many as are
chosen, 64 heads of the indexer (with few heads many tokens have no score but 0, and the choice among them is open)."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from tests.parity.conftest import distribution, generate, greedy, make_engine, prompts, tokens
from tests.tiny import write_checkpoint

TOP_K = 32
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v32": ("deepseek_v32", {}),
    "glm_moe_dsa": ("glm_moe_dsa", {}),
    "glm_moe_dsa, every fourth layer": (
        "glm_moe_dsa",
        {"indexer_types": None, "index_topk_freq": 4, "index_skip_topk_offset": 3, "num_hidden_layers": 7,
         "index_topk_pattern": None, "mlp_layer_types": ["dense"] * 7},
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=VARIANTS, ids=str)
def checkpoint(request, tmp_path_factory):
    family, config = VARIANTS[request.param]
    return write_checkpoint(tmp_path_factory.mktemp("sparse") / "model", family, seed=3, index_topk=TOP_K, **config)


@pytest.fixture(scope="module")
def expected(checkpoint, oracle):
    """The oracle's log probabilities behind prompts of 300 tokens."""
    model = oracle(checkpoint)
    with torch.inference_mode():
        return {
            name: torch.log_softmax(model(torch.tensor([prompt])).logits[0, -1], -1) for name, prompt in asked().items()
        }


def asked(length: int = 300) -> dict[str, list[int]]:
    return prompts(2, (length,))


def engine(folder, **changes):
    return make_engine(folder, **({"max_model_len": 512, "num_blocks": 160} | changes))


@pytest.mark.parametrize("cut", [3, 7, 130, 512])
def test_300_tokens_in_chunks_and_from_the_prefix_cache(checkpoint, expected, cut):
    found = engine(checkpoint, max_num_batched_tokens=cut, max_num_seqs=3)
    for _ in range(2):
        for name, prompt in asked().items():
            torch.testing.assert_close(distribution(found, prompt), expected[name], atol=2e-5, rtol=0)
    assert found.scheduler.prompt_tokens_cached > 500


def test_the_choice_binds(checkpoint, expected):
    """Otherwise the other tests here say nothing: over all tokens the numbers are others."""
    path = checkpoint / "config.json"
    chosen = path.read_text()
    try:
        path.write_text(json.dumps(json.loads(chosen) | {"index_topk": 512}))
        found = distribution(engine(checkpoint), asked()["r0"])
    finally:
        path.write_text(chosen)
    assert (found - expected["r0"]).abs().max() > 0.1


def test_64_greedy_tokens_alone_together_in_chunks_and_preempted(checkpoint, oracle):
    """Prompts on both sides of what is chosen, some with a common beginning, in a cache too small for all of them."""
    shared = asked(70)["r0"]
    prompted = {name: shared[:40] + prompt for name, prompt in prompts(4, (3, 20, 33)).items()}
    prompted |= {"long": asked()["r0"], "longer": asked(310)["r0"]}
    calm = generate(engine(checkpoint, prefix_caching=False, max_num_batched_tokens=512), prompted)
    written = {name: tokens(outputs) for name, outputs in calm.items()}
    assert {len(found) for found in written.values()} == {64}
    assert written == greedy(oracle(checkpoint), prompted, written)
    alone = generate(engine(checkpoint), {"long": prompted["long"]})
    assert tokens(alone["long"]) == written["long"]
    tight = engine(checkpoint, num_blocks=42, max_model_len=400, max_num_batched_tokens=23)
    found = {name: tokens(outputs) for name, outputs in generate(tight, prompted).items()}
    assert tight.scheduler.num_preemptions > 0
    assert tight.scheduler.prompt_tokens_cached > 0
    assert found == written
