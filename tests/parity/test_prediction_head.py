"""DeepSeek V3's head for multi-token prediction against transformers', and its drafts in the engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from appliance.engine.engine import Engine
from appliance.models.collectives import Group
from tests.parity.conftest import generate, make_engine, prompts, tokens
from tests.parity.ranks import together
from tests.tiny import write_checkpoint

MTP = {"drafts": "mtp", "num_speculative_tokens": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "model"
    return write_checkpoint(folder, "deepseek_v3", seed=2, num_nextn_predict_layers=1)


def drafting(folder, *group: Group, **config: Any) -> tuple[Engine, dict[int, torch.Tensor]]:
    """An engine, and what its head gives behind each position, the last one for each."""
    engine = make_engine(folder, *group, **MTP, **config)
    given: dict[int, torch.Tensor] = {}
    drafter = engine._runner._model.drafter
    assert drafter is not None
    forward = drafter.forward

    def watched(batch, hidden, cache):
        found = forward(batch, hidden, cache)
        given.update(zip(batch.positions.tolist(), found, strict=True))
        return found

    drafter.forward = watched  # type: ignore[method-assign]
    return engine, given


@torch.inference_mode()
@pytest.mark.parametrize("budget", [256, 7], ids=["whole", "chunks"])
def test_its_hidden_states_are_those_of_transformers(folder, oracle, budget):
    """Over a prompt in chunks, decodes, and drafts that were rejected."""
    from transformers.modeling_layers import MtpModel

    model = oracle(folder)
    model._keys_to_ignore_on_load_unexpected = [r"model\.layers\.3\..*"]  # by which the head is found; as published, 61
    head = MtpModel.from_pretrained(model)
    engine, given = drafting(folder, max_num_batched_tokens=budget)
    prompt = list(range(9, 60))
    whole = torch.tensor([prompt + tokens(generate(engine, {"r": prompt}, max_tokens=20)["r"])])
    hidden = model.model(whole).last_hidden_state
    positions = torch.arange(whole.shape[1] - 1)[None]
    expected = head.forward_layer(0, hidden[:, :-1], positions, None, input_ids=whole[:, 1:])[0]
    seen = torch.stack([given[position] for position in range(len(expected))])
    torch.testing.assert_close(seen, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("overlaps", [False, True], ids=["plain", "overlapping"])
def test_answers_are_those_without_drafts(folder, overlaps):
    asked = prompts(6)
    sampling = {"max_tokens": 40, "temperature": 0.8, "seed": 3}
    expected = {name: tokens(found) for name, found in generate(make_engine(folder), asked, **sampling).items()}
    engine, _ = drafting(folder)
    engine.overlaps = overlaps
    assert {name: tokens(found) for name, found in generate(engine, asked, **sampling).items()} == expected
    drafts = engine.scheduler.drafts
    assert drafts is not None
    assert drafts.num_drafted > 100


def test_what_it_predicts_is_accepted_where_the_model_agrees(folder):
    """Both are made to say one token by its bias here and by the head's last norm there."""
    engine, _ = drafting(folder)
    model: Any = engine._runner._model
    model.drafter.norm.weight.zero_()
    # Of equal logits the first token is taken.
    found = generate(engine, {"r": [9, 8, 7]}, max_tokens=40, logit_bias={0: 100.0})["r"]
    assert tokens(found) == [0] * 40
    assert engine.scheduler.drafts is not None
    assert engine.scheduler.drafts.num_accepted == 19
    assert sum(engine.steps.values()) == 21


def test_ranks_predict_alike(folder):
    def run(group) -> tuple[dict[str, list[int]], int]:
        engine, _ = drafting(folder, group)
        found = {name: tokens(outputs) for name, outputs in generate(engine, prompts(3), max_tokens=20).items()}
        assert engine.scheduler.drafts is not None
        return found, engine.scheduler.drafts.num_drafted

    first, second = together(2, run)
    assert first == second
    assert first[1] > 20
