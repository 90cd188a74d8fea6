"""Prefixes of a model with states, from copies: the tokens of cold runs, whatever else runs, and nobody's damage."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from appliance.core_protocol import FinishReason, SamplingParams, Submit
from appliance.engine.engine import Engine
from appliance.models.batch import StateCache
from tests.engine.drafted import Guesser
from tests.parity.conftest import generate, make_engine, tokens
from tests.parity.loads import MAX_TOKENS, play
from tests.tiny import write_checkpoint

SECONDS = float(os.environ.get("INGOT_FUZZ_SECONDS", "7"))
COPIES = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("hybrid") / "model", "qwen3_next", seed=11)


@pytest.fixture(scope="module")
def cold(folder) -> Engine:
    return make_engine(folder, prefix_caching=False)


def numbers(count: int, seed: int = 1) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(6, 512) for _ in range(count)]


def ask(engine: Engine, prompt: list[int], name: str = "r", **sampling: Any) -> tuple[list[int], int]:
    """What is answered, and how many tokens of the prompt were known."""
    outputs = generate(engine, {name: prompt}, max_tokens=sampling.pop("max_tokens", 24), **sampling)[name]
    return tokens(outputs), outputs[0].num_cached_tokens


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, 47, 48, 49, 79, 80, 81])
def test_warm_equals_cold_at_every_border_and_beside_it(folder, cold, length):
    engine = make_engine(folder, num_snapshots=COPIES)
    prompt = numbers(length)
    expected, _ = ask(cold, prompt)
    assert ask(engine, prompt) == (expected, 0)
    assert ask(engine, prompt) == (expected, (length - 1) // 16 * 16)
    longer = [*prompt, *numbers(9, 2)]
    assert ask(engine, longer)[0] == ask(cold, longer)[0]


def test_the_next_turn_begins_where_the_answer_ended(folder, cold):
    engine = make_engine(folder, num_snapshots=COPIES)
    first = numbers(40)
    spoken, _ = ask(engine, first, max_tokens=60)
    second = [*first, *spoken, *numbers(20, 3)]
    answered, known = ask(engine, second)
    assert known == 96  # the last multiple of 32 that was computed of the 99 tokens
    assert answered == ask(cold, second)[0]


def test_nothing_is_known_without_rows_for_copies(folder, cold):
    engine = make_engine(folder, num_snapshots=0)
    expected = ask(cold, numbers(60))[0]
    assert [ask(engine, numbers(60)) for _ in range(2)] == [(expected, 0)] * 2


def test_a_state_of_nans_ends_its_own_sequence_only(folder, cold):
    engine = make_engine(folder, num_snapshots=COPIES)
    prompts = {"damaged": numbers(40, 5), "sound": numbers(40, 6)}
    for name, prompt in prompts.items():
        params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
        assert engine.submit(Submit(request_id=name, prompt_token_ids=prompt, sampling=params)) is None
    outputs = [output for _ in range(4) for output in engine.step()]
    damaged = engine.scheduler.get("damaged")
    assert damaged is not None
    for cache in engine._caches.layers:
        if isinstance(cache, StateCache):
            cache.tensors[0][damaged.slot] = torch.nan
    while not engine.idle:
        outputs += engine.step()
        engine.scheduler.check_books()
    (ended,) = (output for output in outputs if output.finish_reason is FinishReason.ERROR)
    assert ended.request_id == "damaged"
    sound = [token for output in outputs if output.request_id == "sound" for token in output.token_ids]
    assert sound == ask(cold, prompts["sound"], max_tokens=20)[0]
    # The slot is cleared, and no copy behind what it had computed is found again.
    assert ask(engine, prompts["damaged"]) == (ask(cold, prompts["damaged"])[0], 0)


def test_a_copy_of_nans_is_found_once_at_most(folder, cold):
    engine = make_engine(folder, num_snapshots=COPIES)
    prompt = numbers(40)
    ask(engine, prompt)
    engine._caches.states[9:].view(torch.float32).fill_(torch.nan)  # the rows for copies, behind 8 slots and padding
    (output,) = generate(engine, {"r": prompt}, max_tokens=24)["r"]
    assert output.finish_reason is FinishReason.ERROR
    assert ask(engine, prompt) == (ask(cold, prompt)[0], 0)


def drawn(
    cold: Engine, known: dict[tuple[int, ...], list[int]], guesses: dict[str, list[int]], rng: random.Random
) -> Iterator[list[int]]:
    """Ten prompts with few beginnings; what follows each is in `known`, and by the prompt's number in `guesses`."""
    roots = [numbers(rng.randrange(1, 80), rng.randrange(4)) for _ in range(2)]
    for number in range(10):
        root = rng.choice(roots)
        prompt = [*root[: rng.randrange(1, len(root) + 1)], *numbers(rng.randrange(0, 30), rng.randrange(3))]
        if tuple(prompt) not in known:
            known[tuple(prompt)] = ask(cold, prompt, max_tokens=MAX_TOKENS)[0]
        guesses[str(number)] = known[tuple(prompt)]
        yield prompt


@pytest.mark.parametrize("drafts", [0, 3], ids=["alone", "drafts"])
@pytest.mark.parametrize("overlaps", [False, True], ids=["plain", "overlapped"])
def test_any_load_gets_the_tokens_of_cold_runs(folder, cold, overlaps, drafts):
    """Shared prefixes, forks, turns, aborts, preemptions, evictions and odd chunks; and drafts, many of them right."""
    rng = random.Random(17)
    known: dict[tuple[int, ...], list[int]] = {}
    until, hits, preemptions, accepted = time.process_time() + SECONDS, 0, 0, 0
    while time.process_time() < until or not hits or not preemptions:  # a slow machine gets to both in the end
        engine = make_engine(
            folder,
            num_snapshots=rng.choice([1, 3, 8]),
            num_blocks=rng.choice([17, 17, 40]),
            max_num_batched_tokens=rng.choice([9, 23, 64]),
            max_num_seqs=rng.choice([2, 8]),
            drafts="ngram" if drafts else "none",
            num_speculative_tokens=drafts,
        )
        guesses: dict[str, list[int]] = {}
        if engine.scheduler.drafts is not None:
            engine.scheduler.drafts._proposer = Guesser(guesses)
        engine.overlaps = overlaps
        asked, written = play(engine, drawn(cold, known, guesses, rng), rng)
        for name, prompt in asked.items():
            assert written[name] == known[tuple(prompt)], name
        hits += engine.scheduler.prompt_tokens_cached > 0
        preemptions += engine.scheduler.num_preemptions
        accepted += engine.scheduler.drafts.num_accepted if engine.scheduler.drafts else 0
    assert bool(accepted) == bool(drafts)
