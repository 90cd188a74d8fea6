"""Loads in which requests come, go and are aborted between the steps of an engine."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from appliance.core_protocol import FinishReason, SamplingParams, Submit
from appliance.engine.engine import Engine

MAX_TOKENS = 40


def play(
    engine: Engine,
    prompts: Iterable[list[int]],
    rng: random.Random,
    before_step: Callable[[Engine], None] = lambda engine: None,
) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Ask each of `prompts`, which is drawn as it is asked, with up to six steps in between, and abort one in ten. The
    prompts of the others by their name, a number, and the `MAX_TOKENS` tokens that were written for each."""
    asked: dict[str, list[int]] = {}
    written: dict[str, list[int]] = {}
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        asked[str(number)] = prompt
        assert engine.submit(Submit(request_id=str(number), prompt_token_ids=prompt, sampling=params)) is None
        for _ in range(rng.choice([0, 1, 6])):
            collect(engine, written, before_step)
        if rng.random() < 0.1:
            gone = rng.choice(list(asked))
            engine.abort(gone)
            del asked[gone]
    while not engine.idle:
        collect(engine, written, before_step)
    return asked, written


def collect(
    engine: Engine, written: dict[str, list[int]], before_step: Callable[[Engine], None] = lambda engine: None
) -> None:
    """One step, whose books are checked, and whose tokens are added to `written`."""
    before_step(engine)
    for output in engine.step():
        assert output.finish_reason is not FinishReason.ERROR, output.error
        written.setdefault(output.request_id, []).extend(output.token_ids)
    engine.scheduler.check_books()
