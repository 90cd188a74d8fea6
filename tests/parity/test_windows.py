"""Layers with windows, whose pages are let go while a sequence runs: the tokens of runs that keep everything, in pools
that hold little more than a window, and whatever lies in pages that were let go."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import pytest
import torch

from appliance.core_protocol import SamplingParams, Submit
from appliance.engine.block_pool import BlockPool
from appliance.engine.engine import Engine
from appliance.engine.speculation.drafts import Drafts
from tests.engine.drafted import Guesser
from tests.parity.conftest import generate, make_engine, prompts, tokens
from tests.parity.loads import MAX_TOKENS, collect, play
from tests.tiny import write_checkpoint

SECONDS = float(os.environ.get("INGOT_FUZZ_SECONDS", "6"))
WINDOW = 24
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "all layers": ("mistral", {"sliding_window": WINDOW}),
    "upper layers": ("qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "in turn": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": WINDOW, "num_hidden_layers": 4,
         "layer_types": ["sliding_attention", "full_attention"] * 2},
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=MODELS)
def folder(request, tmp_path_factory):
    family, config = MODELS[request.param]
    return write_checkpoint(tmp_path_factory.mktemp("windows") / "model", family, seed=7, **config)


@pytest.fixture(scope="module")
def roomy(folder) -> Engine:
    """It keeps every token: no layer has a pool of its own, or lets go of anything."""
    engine = make_engine(folder, prefix_caching=False, window_blocks={}, max_num_batched_tokens=512)
    for pool in engine.scheduler.cache._pools:
        pool.window = None
    inputs = engine._runner._inputs
    inputs._pools = [pool._replace(window=None) for pool in inputs._pools]
    return engine


def tight_engine(folder, *, more: int = 0, **config: Any) -> Engine:
    """With the least that a sequence can be computed in, and so many blocks `more`, of layers with a window."""
    size = config.setdefault("block_size", 16)
    least = BlockPool(1, size, WINDOW).most_held(256, chunk=2) + more
    alone = not make_engine(folder).scheduler.cache._pools[1:]
    blocks = least if alone else 256 // size + more
    return make_engine(folder, num_blocks=blocks, window_blocks={} if alone else {WINDOW: least}, **config)


def poison(engine: Engine) -> None:
    """Whatever nobody holds becomes NaN, in every pool, before the next step."""
    held = {block for request in engine.scheduler.running for block in request.blocks}
    cached = {
        (place, block)
        for place, pool in enumerate(engine.scheduler.cache._pools)
        for block in pool._hash_of
    }  # fmt: skip
    for layer, place in zip(engine._caches.layers, engine._caches._pool_of, strict=True):
        free = [block for block in range(len(layer.tensors[0])) if (place, block) not in held | cached]
        for tensor in layer.tensors:
            tensor[free] = torch.nan


def run(engine: Engine, asked: dict[str, list[int]], **sampling: Any) -> dict[str, list[int]]:
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 64, "ignore_eos": True} | sampling)
    for name, prompt in asked.items():
        assert engine.submit(Submit(request_id=name, prompt_token_ids=prompt, sampling=params)) is None
    written: dict[str, list[int]] = {name: [] for name in asked}
    while not engine.idle:
        collect(engine, written, poison)
    return written


@pytest.mark.parametrize("overlaps", [False, True], ids=["plain", "overlapped"])
@pytest.mark.parametrize("block_size", [4, 16, 32])
def test_pages_behind_a_window_are_never_read(folder, roomy, block_size, overlaps):
    """They hold NaN as soon as they are let go, in pools in which that is often."""
    engine = tight_engine(folder, block_size=block_size, more=6, prefix_caching=False, max_num_batched_tokens=23)
    engine.overlaps = overlaps
    asked = prompts(6, (3, 20, 33, 90))
    expected = {name: tokens(found) for name, found in generate(roomy, asked).items()}
    assert run(engine, asked) == expected


def test_a_long_sequence_holds_little_more_than_its_window(folder, roomy):
    engine = tight_engine(folder, more=4, max_num_batched_tokens=32)
    asked = prompts(1, (180,))
    assert run(engine, asked) == {name: tokens(found) for name, found in generate(roomy, asked).items()}
    assert engine.scheduler.num_preemptions == 0


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 120])
def test_warm_equals_cold_at_every_border_and_beside_it(folder, roomy, length):
    engine = tight_engine(folder, more=8)
    prompt = prompts(1, (length,))["r0"]
    expected = tokens(generate(roomy, {"r": prompt}, max_tokens=20)["r"])
    for known in (0, (length - 1) // 16 * 16):
        outputs = generate(engine, {"r": prompt}, max_tokens=20)["r"]
        assert (tokens(outputs), outputs[0].num_cached_tokens) == (expected, known)
    longer = [*prompt, 9, 8, 7]
    found, cold = (generate(each, {"r": longer}, max_tokens=20)["r"] for each in (engine, roomy))
    assert tokens(found) == tokens(cold)


def test_rejected_drafts_leave_nothing_behind(folder, roomy):
    engine = tight_engine(folder, more=12, drafts="ngram", num_speculative_tokens=4, max_num_batched_tokens=40)
    asked = prompts(4, (3, 20, 90))
    expected = {name: tokens(found) for name, found in generate(roomy, asked).items()}
    engine.scheduler.drafts = Drafts(Guesser(expected), 4, 40)
    assert run(engine, asked) == expected
    assert 0 < engine.scheduler.drafts.num_accepted < engine.scheduler.drafts.num_drafted


@pytest.mark.parametrize("overlaps", [False, True], ids=["plain", "overlapped"])
def test_any_load_gets_the_tokens_of_cold_runs(folder, roomy, overlaps):
    """Shared prefixes, forks, aborts, preemptions, evictions, odd chunks, and NaN wherever nobody should look."""
    rng = random.Random(17)
    known: dict[tuple[int, ...], list[int]] = {}
    until, hits, preemptions = time.process_time() + SECONDS / 3, 0, 0
    while time.process_time() < until or not hits or not preemptions:  # a slow machine gets to both in the end
        engine = tight_engine(
            folder,
            more=rng.choice([0, 2, 5, 20]),
            block_size=rng.choice([4, 16]),
            max_num_batched_tokens=rng.choice([9, 23, 64]),
            max_num_seqs=rng.choice([2, 8]),
        )
        engine.overlaps = overlaps
        roots = list(prompts(2, (rng.randrange(1, 120), rng.randrange(1, 120))).values())
        drawn = (
            [*root[: rng.randrange(1, len(root) + 1)], *rng.choices(range(6, 512), k=rng.randrange(3))]
            for root in (rng.choice(roots) for _ in range(8))
        )
        asked, written = play(engine, drawn, rng, poison)
        for name, prompt in asked.items():
            key = tuple(prompt)
            if key not in known:
                known[key] = tokens(generate(roomy, {"r": prompt}, max_tokens=MAX_TOKENS)["r"])
            assert written[name] == known[key], name
        hits += engine.scheduler.prompt_tokens_cached > 0
        preemptions += engine.scheduler.num_preemptions
