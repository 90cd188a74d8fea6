"""Embeddings: the last hidden state, or the mean of all, whatever else runs and however the prompt is cut."""

from __future__ import annotations

import random
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel

from appliance.core_protocol import FinishReason, SamplingParams, Submit, TokenOutput
from tests.parity.conftest import generate, make_engine, tokens
from tests.tiny import write_checkpoint

NOTHING: Mapping[str, Submit] = {}
rng = random.Random(12)
PROMPTS = [[rng.randrange(6, 500) for _ in range(length)] for length in (75, 40, 1)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("pooling") / "model", "qwen3")


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, list[torch.Tensor]]:
    model = AutoModel.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        hidden = [model(torch.tensor([prompt])).last_hidden_state[0] for prompt in PROMPTS]
    return {"last": [each[-1] for each in hidden], "mean": [each.mean(dim=0) for each in hidden]}


def embed(
    engine: Any, pooling: Any, prompts: list[list[int]], beside: Mapping[str, Submit] = NOTHING
) -> list[TokenOutput]:
    sampling = SamplingParams(max_tokens=1, temperature=0)
    for index, prompt in enumerate(prompts):
        submit = Submit(request_id=str(index), prompt_token_ids=prompt, sampling=sampling, pooling=pooling)
        assert engine.submit(submit) is None
    for message in beside.values():
        assert engine.submit(message) is None
    found: dict[str, list[TokenOutput]] = {}
    while not engine.idle:
        for output in engine.step():
            found.setdefault(output.request_id, []).append(output)
        engine.scheduler.check_books()
    assert all(len(found[str(index)]) == 1 for index in range(len(prompts)))
    return [found[str(index)][0] for index in range(len(prompts))]


def vector(output: TokenOutput) -> torch.Tensor:
    assert output.finish_reason is FinishReason.STOP, output.error
    assert output.embedding is not None
    assert not output.token_ids
    return torch.tensor(array("f", output.embedding))


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("tokens_a_step", [16, 33, 256])
@pytest.mark.parametrize("overlaps", [False, True])
def test_it_is_that_of_transformers(folder, expected, pooling, tokens_a_step, overlaps):
    """In one batch with requests that generate, in chunks, with steps that overlap."""
    engine = make_engine(folder, max_num_batched_tokens=tokens_a_step)
    engine.overlaps = overlaps
    greedy = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    beside = {"g": Submit(request_id="g", prompt_token_ids=PROMPTS[0][:30], sampling=greedy)}
    for output, wanted in zip(embed(engine, pooling, PROMPTS, beside), expected[pooling], strict=True):
        torch.testing.assert_close(vector(output), wanted, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(("pooling", "cached"), [("last", 64), ("mean", 0)])
def test_a_prompt_that_is_cached(folder, expected, pooling, cached):
    """Its last state needs no more than its last tokens, the mean all; and others find what an embedding computed."""
    engine = make_engine(folder)
    first = embed(engine, pooling, PROMPTS[:1])[0]
    again = embed(engine, pooling, PROMPTS[:1])[0]
    assert (first.num_cached_tokens, again.num_cached_tokens) == (0, cached)
    torch.testing.assert_close(vector(again), expected[pooling][0], atol=2e-5, rtol=1e-4)
    answer = generate(engine, {"r": PROMPTS[0]}, max_tokens=5)["r"]
    assert answer[0].num_cached_tokens == 64
    assert tokens(answer) == tokens(generate(make_engine(folder), {"r": PROMPTS[0]}, max_tokens=5)["r"])


def test_the_mean_survives_preemption(folder, expected):
    """Blocks are scarce beside requests that grow."""
    engine = make_engine(folder, num_blocks=18, max_num_batched_tokens=32)
    long = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    beside = {
        name: Submit(request_id=name, prompt_token_ids=PROMPTS[0], sampling=long, priority=-1)
        for name in ("a", "b", "c")
    }
    outputs = embed(engine, "mean", [PROMPTS[0]] * 3, beside)
    assert engine.scheduler.num_preemptions > 0
    for output in outputs:
        torch.testing.assert_close(vector(output), expected["mean"][0], atol=2e-5, rtol=1e-4)
