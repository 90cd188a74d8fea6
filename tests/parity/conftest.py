"""Engines and oracles for the same tiny checkpoint."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from appliance.core_protocol import SamplingParams, Submit, TokenOutput
from appliance.engine.engine import Engine
from appliance.models.collectives import ALONE, Group
from tests.configured import engine_config

# Models this small are computed faster by one thread than by several that wait for each other.
torch.set_num_threads(1)


def make_engine(folder: Path, group: Group = ALONE, /, **config: Any) -> Engine:
    return Engine(engine_config(folder, ranks=group.count, **config), lambda phase: None, lambda line: None, group)


def generate(engine: Engine, prompts: dict[str, list[int]], **sampling: Any) -> dict[str, list[TokenOutput]]:
    """Run all `prompts` together to their ends: each one's outputs in order."""
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 64, "ignore_eos": True, "logprobs": 0} | sampling)
    outputs: dict[str, list[TokenOutput]] = {name: [] for name in prompts}
    for name, prompt in prompts.items():
        refused = engine.submit(Submit(request_id=name, prompt_token_ids=prompt, sampling=params))
        assert refused is None, refused
    while not engine.idle:
        for output in engine.step():
            outputs[output.request_id].append(output)
        engine.scheduler.check_books()
    return outputs


def tokens(outputs: list[TokenOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def prompts(count: int, lengths: tuple[int, ...] = (1, 5, 37, 90)) -> dict[str, list[int]]:
    rng = random.Random(5)
    return {f"r{i}": [rng.randrange(6, 512) for _ in range(lengths[i % len(lengths)])] for i in range(count)}


def distribution(engine: Engine, prompt: list[int]) -> torch.Tensor:
    """The log probabilities of all 512 tokens after `prompt`."""
    (output,) = generate(engine, {"r": prompt}, max_tokens=1, logprobs=512)["r"]
    found = torch.empty(512)
    for token, logprob in output.logprobs[0].top:
        found[token] = logprob
    return found


@torch.inference_mode()
def greedy(model: Any, asked: dict[str, list[int]], written: dict[str, list[int]]) -> dict[str, list[int]]:
    """The likeliest token of a transformers model at each place of what was `written` after its prompt, by one pass:
    up to the first place at which it is another, that is what greedy decoding writes."""
    likeliest = {}
    for name, prompt in asked.items():
        whole = torch.tensor([prompt + written[name]], device=model.device)
        likeliest[name] = model(whole).logits[0, len(prompt) - 1 : -1].argmax(-1).tolist()
    return likeliest


@pytest.fixture(scope="module")
def oracle():
    """Load a checkpoint in transformers, in float32 unless told otherwise."""
    from transformers import AutoModelForCausalLM  # late: it takes seconds, and processes of tests use the rest

    def load(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()

    return load
