"""The engine with CUDA graphs against itself without: on a GPU, in half precision, where kernels exist for all ops."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest
import torch

from appliance.checkpoint.config import read_config
from appliance.core_protocol import SamplingParams, Submit, TokenOutput
from appliance.engine.engine import Engine
from appliance.protocol import StepKind
from tests.configured import engine_config
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


class Engines(NamedTuple):
    """Without graphs, with those of decodes, and with those of prompts too, where the model's can be held; all of them
    captured."""

    has_states: bool
    eager: Engine
    graphs: Engine
    mixed: Engine | None


@pytest.fixture(scope="module", params=CASES)
def engines(request, tmp_path_factory) -> Engines:
    family, changes = CASES[request.param]
    folder = tmp_path_factory.mktemp("models") / "model"
    values = aligned(family) | {"max_position_embeddings": 4096} | changes
    checkpoint = write_checkpoint(folder, family, dtype="bfloat16", seed=4, scale=0.1, **values)
    config: dict[str, Any] = {
        "dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "device": "cuda:0", "max_num_seqs": 16,
        "max_model_len": 2048, "num_blocks": 600, "max_num_batched_tokens": 2048, "num_snapshots": 32,
    }  # fmt: skip
    held, model = engine_config(checkpoint, **config).prefill_graphs, read_config(checkpoint)
    assert held == (model.latent_attention is None)
    eager = make_engine(checkpoint, **config, enforce_eager=True)
    graphs = make_engine(checkpoint, **config, enforce_eager=False, prefill_graphs=False)
    mixed = make_engine(checkpoint, **config, enforce_eager=False) if held else None
    for engine in filter(None, (graphs, mixed)):
        while engine.capture_next():
            pass
    return Engines(model.has_states, eager, graphs, mixed)


@pytest.fixture
def pair(engines) -> tuple[Engine, Engine]:
    return engines.eager, engines.graphs


@pytest.fixture
def with_prompts(engines) -> tuple[Engine, Engine]:
    if engines.mixed is None:
        pytest.skip("no graph holds prompts")
    return engines.eager, engines.mixed


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


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_prompts_of_a_graphs_own_size_generate_the_same(engines, with_prompts, count):
    if engines.has_states:
        pytest.skip("of each prompt the last block is a step of its own, behind a copy of the state")
    eager, mixed = with_prompts
    prompts = asked(50 + count, count, (64,))
    expected = {name: tokens(outputs) for name, outputs in generate(eager, prompts).items()}
    before = dict(mixed.steps)
    assert {name: tokens(outputs) for name, outputs in generate(mixed, prompts).items()} == expected
    assert mixed.steps[StepKind.MIXED_GRAPH] - before.get(StepKind.MIXED_GRAPH, 0) == 1
    assert sum(mixed.steps.values()) - sum(before.values()) == 64


@pytest.mark.parametrize("count", [1, 3, 5, 11])
def test_padded_prompts_change_nothing_but_rounding(with_prompts, count):
    near_as(with_prompts, asked(60 + count, count, (33, 7, 130, 61)))


def test_a_prompt_beside_decodes(with_prompts):
    """The second comes when the first has answered some: what it adds to the step changes no answer but by rounding."""
    eager, mixed = with_prompts
    first, second = asked(70, 2, (40, 150)).values()
    found = []
    for engine in (eager, mixed):
        sampling = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=0)
        told: dict[str, list[TokenOutput]] = {"first": [], "second": []}
        engine.submit(Submit(request_id="first", prompt_token_ids=first, sampling=sampling))
        while not engine.idle:
            if len(told["first"]) == 8 and not told["second"] and engine.scheduler.get("second") is None:
                engine.submit(Submit(request_id="second", prompt_token_ids=second, sampling=sampling))
            for output in engine.step():
                told[output.request_id].append(output)
        found.append(told)
    for name in found[0]:
        pairs = zip(found[0][name][:8], found[1][name][:8], strict=True)
        assert max(abs(a.logprobs[0].logprob - b.logprobs[0].logprob) for a, b in pairs) < 0.1


@pytest.mark.parametrize("count", [3, 5, 11])
def test_padding_changes_nothing_but_rounding(pair, count):
    """Of a padded batch a product may be rounded otherwise: the first tokens' log probabilities stay near."""
    near_as(pair, asked(40 + count, count))


def near_as(engines: tuple[Engine, Engine], prompts: dict[str, list[int]]) -> None:
    eager, graphs = engines
    expected = generate(eager, prompts, max_tokens=4)
    found = generate(graphs, prompts, max_tokens=4)
    near = 0
    for name in prompts:
        if tokens(expected[name]) == tokens(found[name]):
            pairs = zip(expected[name], found[name], strict=True)
            assert max(abs(a.logprobs[0].logprob - b.logprobs[0].logprob) for a, b in pairs) < 0.1
            near += 1
    assert near > len(prompts) / 2


def test_requests_that_come_and_go(engines):
    """Random arrivals and aborts: each request ends, and the scheduler's books are right."""
    graphs = engines.mixed or engines.graphs
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
    assert graphs.steps[StepKind.MIXED_GRAPH if engines.mixed else StepKind.PREFILL] > 50
