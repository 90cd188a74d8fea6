"""The log probabilities of a prompt's own tokens: the model's, whatever else runs, and however the prompt is cut."""

from __future__ import annotations

import random

import pytest
import torch

from appliance.core_protocol import PromptLogprobs, SamplingParams, Submit, TokenOutput
from tests.parity.conftest import generate, make_engine, tokens
from tests.tiny import write_checkpoint

rng = random.Random(11)
PROMPT = [rng.randrange(6, 500) for _ in range(75)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("scores") / "model", "qwen3")


@pytest.fixture(scope="module")
def expected(folder) -> torch.Tensor:
    """[75, 512]: each token's distribution, as sampling reports it after every shorter prompt."""
    engine = make_engine(folder)
    rows = []
    for length in range(1, len(PROMPT)):
        (output,) = generate(engine, {"r": PROMPT[:length]}, max_tokens=1, logprobs=512)["r"]
        rows.append([dict(output.logprobs[0].top)[token] for token in range(512)])
    return torch.tensor(rows)


def check(output: TokenOutput, expected: torch.Tensor, alternatives: int) -> None:
    scores = output.prompt_logprobs
    assert scores is not None
    own = torch.tensor(scores.logprobs)
    torch.testing.assert_close(own, expected.gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0], atol=1e-4, rtol=0)
    assert scores.num_alternatives == alternatives
    ids = torch.tensor(scores.top_token_ids, dtype=torch.int64).view(len(own), alternatives)
    top = torch.tensor(scores.top_logprobs).view(len(own), alternatives)
    torch.testing.assert_close(top, expected.gather(1, ids), atol=1e-4, rtol=0)
    torch.testing.assert_close(top, expected.topk(alternatives).values, atol=1e-4, rtol=0)


@pytest.mark.parametrize("tokens_a_step", [16, 33, 128])
@pytest.mark.parametrize("overlaps", [False, True])
def test_scores_do_not_depend_on_how_a_prompt_is_cut(folder, expected, tokens_a_step, overlaps):
    """They come once, with the first token of the answer."""
    engine = make_engine(folder, max_num_batched_tokens=tokens_a_step)
    engine.overlaps = overlaps
    first, *others = generate(engine, {"r": PROMPT}, max_tokens=5, prompt_logprobs=2)["r"]
    check(first, expected, 2)
    assert not any(output.prompt_logprobs for output in others)


def test_a_cached_prompt_is_computed_again_for_its_scores(folder, expected):
    """And what is cached stays so for others."""
    engine = make_engine(folder)
    plain = tokens(generate(engine, {"r": PROMPT}, max_tokens=5)["r"])
    scored = generate(engine, {"r": PROMPT}, max_tokens=5, prompt_logprobs=0)["r"]
    check(scored[0], expected, 0)
    assert scored[0].num_cached_tokens == 0
    again = generate(engine, {"r": PROMPT}, max_tokens=5)["r"]
    assert again[0].num_cached_tokens == 64
    assert tokens(scored) == tokens(again) == plain


def test_scores_survive_preemption(folder, expected):
    """Blocks are scarce, so that prompts are read twice."""
    engine = make_engine(folder, num_blocks=18, max_num_batched_tokens=32)
    outputs: dict[str, list[TokenOutput]] = {}
    for name in ("one", "two", "three"):
        sampling = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True, prompt_logprobs=1)
        assert engine.submit(Submit(request_id=name, prompt_token_ids=PROMPT, sampling=sampling)) is None
    while not engine.idle:
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
        engine.scheduler.check_books()
    assert engine.scheduler.num_preemptions
    for found in outputs.values():
        check(found[0], expected, 1)
        assert sum(bool(output.prompt_logprobs) for output in found) == 1


def test_a_prompt_of_one_token_has_none(folder):
    first, second = generate(make_engine(folder), {"r": [7]}, max_tokens=2, prompt_logprobs=3)["r"]
    assert first.prompt_logprobs == PromptLogprobs()
    assert second.prompt_logprobs is None
