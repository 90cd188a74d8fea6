"""The engine with CUDA graphs against itself without: on a GPU, in half precision, where kernels exist for all ops."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from appliance.engine.engine import Engine
from appliance.protocol import SamplingParams, StepKind, Submit
from tests.parity.conftest import generate, make_engine, tokens
from tests.tiny import FP8, aligned, write_checkpoint

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "norms of q and k": ("qwen3", {}),
    "experts": ("qwen3_moe", {}),
    "experts in FP8": ("qwen3_moe", {"quantization_config": FP8}),
    "latents": ("deepseek_v3", {}),
    "sparse latents": ("deepseek_v32", {"index_topk": 32}),
    "shared indexers": ("glm_moe_dsa", {"index_topk": 512, "index_n_heads": 32}),
    "states": ("qwen3_next", {}),
}


def asked(seed: int, count: int, lengths: tuple[int, ...] = (3, 20, 61)) -> dict[str, list[int]]:
    rng = random.Random(seed)
    return {f"{seed}-{i}": [rng.randrange(6, 512) for _ in range(lengths[i % len(lengths)])] for i in range(count)}


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory) -> tuple[Engine, Engine]:
    """An engine without graphs, and one with all of them captured."""
    family, changes = CASES[request.param]
    folder = tmp_path_factory.mktemp("models") / "model"
    values = aligned(family) | {"max_position_embeddings": 4096} | changes
    checkpoint = write_checkpoint(folder, family, dtype="bfloat16", seed=4, scale=0.1, **values)
    config: dict[str, Any] = {
        "dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "device": "cuda:0", "max_num_seqs": 16,
        "max_model_len": 2048, "num_blocks": 600, "max_num_batched_tokens": 2048, "num_snapshots": 32,
    }  # fmt: skip
    eager = make_engine(checkpoint, **config, enforce_eager=True)
    graphs = make_engine(checkpoint, **config, enforce_eager=False)
    while graphs.capture_next():
        pass
    return eager, graphs


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16])
def test_a_batch_of_a_graphs_own_size_generates_the_same(pair, count):
    eager, graphs = pair
    prompts = asked(count, count)
    expected = {name: tokens(outputs) for name, outputs in generate(eager, prompts).items()}
    before = graphs.steps[StepKind.GRAPH]
    assert {name: tokens(outputs) for name, outputs in generate(graphs, prompts).items()} == expected
    assert graphs.steps[StepKind.GRAPH] - before == 63


def test_sampled_and_penalised_too(pair):
    eager, graphs = pair
    sampling: dict[str, Any] = {"temperature": 0.9, "seed": 7, "top_p": 0.9, "presence_penalty": 0.5,
                                "repetition_penalty": 1.1}  # fmt: skip
    prompts = asked(31, 8)
    expected = {name: tokens(outputs) for name, outputs in generate(eager, prompts, **sampling).items()}
    assert {name: tokens(outputs) for name, outputs in generate(graphs, prompts, **sampling).items()} == expected


def test_contexts_that_grow_into_a_longer_graph(pair):
    eager, graphs = pair
    prompts = asked(32, 2, (1000, 1010))
    expected = {name: tokens(outputs) for name, outputs in generate(eager, prompts).items()}
    assert {name: tokens(outputs) for name, outputs in generate(graphs, prompts).items()} == expected


@pytest.mark.parametrize("count", [3, 5, 11])
def test_padding_changes_nothing_but_rounding(pair, count):
    """Of a padded batch a product may be rounded otherwise: the first tokens' log probabilities stay near."""
    eager, graphs = pair
    prompts = asked(40 + count, count)
    expected = generate(eager, prompts, max_tokens=4)
    found = generate(graphs, prompts, max_tokens=4)
    near = 0
    for name in prompts:
        if tokens(expected[name]) == tokens(found[name]):
            pairs = zip(expected[name], found[name], strict=True)
            assert max(abs(a.logprobs[0].logprob - b.logprobs[0].logprob) for a, b in pairs) < 0.1
            near += 1
    assert near > count / 2


def test_requests_that_come_and_go(pair):
    """Random arrivals and aborts: each request ends, and the scheduler's books are right."""
    _, graphs = pair
    rng, running, ended = random.Random(9), set(), 0
    for number in range(400):
        if rng.random() < 0.3 and number < 300:
            sampling = SamplingParams(max_tokens=rng.randrange(1, 40), temperature=rng.choice((0.0, 0.8)), seed=number)
            prompt = [rng.randrange(6, 512) for _ in range(rng.randrange(1, 200))]
            assert graphs.submit(Submit(request_id=str(number), prompt_token_ids=prompt, sampling=sampling)) is None
            running.add(str(number))
        if running and rng.random() < 0.05:
            name = rng.choice(sorted(running))
            graphs.abort(name)
            running.discard(name)
        for output in graphs.step():
            assert output.error is None
            if output.finish_reason:
                running.discard(output.request_id)
                ended += 1
        graphs.scheduler.check_books()
    while not graphs.idle:
        for output in graphs.step():
            running -= {output.request_id} if output.finish_reason else set()
    assert not running
    assert ended > 50
