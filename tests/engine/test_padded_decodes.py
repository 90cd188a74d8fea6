"""Decodes laid out as for a CUDA graph: padded with sequences that are not there, and with lengths that only the device
knows. The graphs here are computed anew at each replay, which a CPU can do too."""

from __future__ import annotations

import functools
import random
import threading
from collections import Counter
from typing import Any, ClassVar

import pytest
import torch

from appliance.checkpoint.config import read_config
from appliance.checkpoint.memory.graph_shapes import GraphShape
from appliance.core_protocol import CorePhase, SamplingParams, Submit
from appliance.engine import runner
from appliance.engine.engine import Engine
from appliance.engine.graphs import GraphChoice, StepSize
from appliance.models.collectives import ALONE, Group
from appliance.protocol import Phase, StepKind
from tests.configured import engine_config
from tests.engine.computed_graphs import ComputedGraphs, compute_graphs
from tests.engine.drafted import Guesser
from tests.parity.conftest import generate, make_engine
from tests.parity.ranks import ThreadGroup, together
from tests.tiny import write_checkpoint

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("llama", "qwen3_moe", "deepseek_v3", "glm_moe_dsa", "qwen3_next")},
    "windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}),
}


@pytest.fixture
def graphs(monkeypatch):
    compute_graphs(monkeypatch)


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    family, config = FAMILIES[request.param]
    return write_checkpoint(tmp_path_factory.mktemp("model") / "model", family, seed=2, **config)


@pytest.fixture
def mixed(folder, graphs) -> dict[str, bool]:
    """As if torch's backends could be held with prompts, as Triton's can but for latents."""
    if read_config(folder).latent_attention is not None:
        pytest.skip("no graph holds prompts")
    return {"enforce_eager": False, "prefill_graphs": True}


def engine_of(folder, group: Group = ALONE, /, **changes) -> Engine:
    limits = {
        "max_num_seqs": 11,
        "max_model_len": 256,
        "num_blocks": 60,
        "max_num_batched_tokens": 64,
        "num_snapshots": 8,
    }
    return make_engine(folder, group, **(limits | changes))


def answers(engine: Engine, seed: int) -> dict[str, list[int]]:
    """What requests that arrive and are aborted at random are told, of those that end by themselves."""
    rng, aborted = random.Random(seed), set()
    found: dict[str, list[int]] = {}
    for number in range(120):
        if number < 60 and rng.random() < 0.5:
            sampling = SamplingParams(
                max_tokens=rng.randrange(1, 30),
                min_tokens=rng.choice((0, 0, 3)),
                temperature=rng.choice((0.0, 0.0, 0.9)),
                top_p=rng.choice((1.0, 0.8)),
                presence_penalty=rng.choice((0.0, 0.0, 0.7)),
                seed=number,
            )
            prompt = [rng.randrange(6, 512) for _ in range(rng.randrange(1, 90))]
            assert engine.submit(Submit(request_id=str(number), prompt_token_ids=prompt, sampling=sampling)) is None
            found[str(number)] = []
        if found and rng.random() < 0.05:
            aborted.add(name := rng.choice(sorted(found)))
            engine.abort(name)
        collect(engine, found)
    while not engine.idle:
        collect(engine, found)
    return {name: tokens for name, tokens in found.items() if name not in aborted}


def answers_alone(folder, seed: int, **changes) -> dict[str, list[int]]:
    """Of a plain engine, which reads each step before the next: computed once for all tests of this folder."""
    return _answers_alone(folder, seed, tuple(changes.items()))


@functools.cache
def _answers_alone(folder, seed: int, changes: tuple[tuple[str, int], ...]) -> dict[str, list[int]]:
    return answers(engine_of(folder, **dict(changes)), seed)


def collect(engine: Engine, found: dict[str, list[int]]) -> None:
    for output in engine.step():
        assert output.error is None
        found[output.request_id] += output.token_ids
    engine.scheduler.check_books()


@pytest.mark.parametrize("overlaps", [False, True], ids=["plain", "overlapping"])
@pytest.mark.parametrize("seed", range(3))
def test_the_answers_are_those_of_an_engine_without_graphs(folder, graphs, seed, overlaps):
    expected = answers_alone(folder, seed)
    padded = engine_of(folder, enforce_eager=False)
    padded.overlaps = overlaps
    assert answers(padded, seed) == expected
    assert padded.steps[StepKind.GRAPH] > 20


@pytest.mark.parametrize("overlaps", [False, True], ids=["plain", "overlapping"])
@pytest.mark.parametrize("seed", range(3))
def test_prompts_padded_beside_decodes_are_answered_alike(folder, mixed, seed, overlaps):
    """Whole ones, chunks that end a prompt and chunks that do not, alone and beside decodes."""
    expected = answers_alone(folder, seed)
    engine = engine_of(folder, **mixed)
    engine.overlaps = overlaps
    while engine.capture_next():
        pass
    assert answers(engine, seed) == expected
    assert engine.steps[StepKind.MIXED_GRAPH] > 20
    assert engine.steps[StepKind.GRAPH] > 20
    assert not engine.steps[StepKind.NOT_CAPTURED]


def test_prompts_that_no_graph_holds_are_counted(folder, graphs):
    engine = engine_of(folder, enforce_eager=False)
    answers(engine, 0)
    assert engine.steps[StepKind.PREFILL] > 20
    assert not engine.steps[StepKind.MIXED_GRAPH]


def test_a_step_that_scores_its_prompt_is_counted(folder, mixed):
    """Only while it computes tokens whose scores are wanted."""
    engine = engine_of(folder, **mixed)
    found = generate(engine, {"scored": list(range(6, 40))}, max_tokens=8, prompt_logprobs=1)["scored"]
    assert len(found[0].prompt_logprobs.logprobs) == 33
    assert engine.steps[StepKind.WHOLE_PROMPT] == (2 if read_config(folder).has_states else 1)


def test_a_step_beyond_every_graph_is_counted(folder, mixed):
    """More prompts than the largest graph has places for."""
    engine = engine_of(folder, **mixed)
    generate(engine, {f"r{number}": [6 + number, 7, 8, 9] for number in range(9)}, max_tokens=2)
    assert engine.steps[StepKind.TOO_LARGE] == 1


@pytest.mark.parametrize("seed", range(4, 8))
@pytest.mark.parametrize("crowded", [False, True], ids=["roomy", "crowded"])
def test_the_answers_are_those_of_an_engine_that_reads_each_step_before_the_next(folder, seed, crowded):
    """Where it is crowded, requests are preempted while their tokens are still to be read."""
    cache = {"block_size": 4, "num_blocks": 64} if crowded else {}
    expected = answers_alone(folder, seed, **cache)
    overlapping = engine_of(folder, **cache)
    overlapping.overlaps = True
    assert answers(overlapping, seed) == expected
    assert bool(overlapping.scheduler.num_preemptions) == crowded


@pytest.mark.parametrize("with_prompts", [False, True])
@pytest.mark.parametrize("overlaps", [False, True], ids=["plain", "overlapping"])
def test_drafts_are_decodes_of_a_graph(folder, graphs, overlaps, with_prompts):
    """Beside requests that may have none, and beside prompts."""
    if with_prompts and read_config(folder).latent_attention is not None:
        pytest.skip("no graph holds prompts")
    expected = answers_alone(folder, 0)
    engine = engine_of(
        folder, enforce_eager=False, drafts="ngram", num_speculative_tokens=3, prefill_graphs=with_prompts
    )
    engine.overlaps = overlaps
    drafts = engine.scheduler.drafts
    assert drafts is not None
    drafts._proposer = Guesser(expected, wrong=5)
    assert answers(engine, 0) == expected
    assert drafts.num_accepted > 100
    assert engine.steps[StepKind.GRAPH] > 20
    assert bool(engine.steps[StepKind.MIXED_GRAPH]) == with_prompts


def test_prompts_that_arrive_together_share_what_is_not_read_yet(folder):
    """None of them is admitted in the step between the launch of the first and its result."""
    engine = engine_of(folder)
    engine.overlaps = True
    prompt = list(range(6, 70))
    generate(engine, {f"r{number}": prompt for number in range(4)}, max_tokens=4)
    assert engine.scheduler.prompt_tokens_cached == 3 * 48


def test_the_others_are_captured_while_it_is_idle(folder, graphs):
    engine = engine_of(folder, enforce_eager=False)
    count = 0
    while engine.capture_next():
        count += 1
    assert count > 0
    assert not engine.capture_next()
    assert not engine_of(folder).capture_next()


def test_a_shape_always_lies_at_the_same_addresses(folder, graphs):
    """Where a graph that was captured over them finds the next step."""
    inputs, shape = engine_of(folder)._runner._inputs, GraphShape(4, 256)
    seen = []
    for other in (GraphShape(8, 64), GraphShape(1, 256)):
        inputs.lay_out_padded((), shape)
        batch, *rest = inputs.padded(shape)
        attention = batch.attention
        device = (batch.token_ids, batch.positions, attention.seq_lens, attention.block_tables, attention.slot_mapping)
        seen.append([tensor.data_ptr() for tensor in (*device, attention.query_start_loc, *rest)])
        inputs.lay_out_padded((), other)
    assert seen[0] == seen[1]


def test_more_sequences_than_a_step_may_hold_tokens(folder, graphs):
    engine = engine_of(folder, max_num_batched_tokens=4, enforce_eager=False)
    while engine.capture_next():
        pass
    assert answers(engine, 1) == answers(engine_of(folder, max_num_batched_tokens=4), 1)


@pytest.mark.parametrize("missing", ["warm_up", "capture"])
def test_without_memory_for_graphs_the_others_run_eagerly(folder, graphs, monkeypatch, missing):
    """Those that were captured before are still used."""
    expected = answers_alone(folder, 2)
    engine = engine_of(folder, enforce_eager=False)

    def full(_self, _shape):
        if missing == "warm_up":
            raise torch.OutOfMemoryError
        return False

    monkeypatch.setattr(ComputedGraphs, missing, full)
    assert not engine.capture_next()
    assert answers(engine, 2) == expected
    assert engine.steps[StepKind.GRAPH] > 0


def test_progress_counts_the_graphs_there_are_to_be(folder, graphs):
    phases: list[CorePhase] = []
    config = engine_config(folder, max_num_seqs=1, max_model_len=256, num_blocks=60, enforce_eager=False)
    Engine(config, report=phases.append, log=lambda line: None)
    seen = [phase.progress for phase in phases if phase.phase == Phase.GRAPHS]
    assert [(progress.done, progress.total) for progress in seen if progress] == [(0, 1), (1, 1)]


def test_a_graph_is_captured_once_it_was_wanted_several_times():
    large, small = GraphShape(8, 256), GraphShape(1, 256)
    choice = GraphChoice((large, small))
    one = StepSize(1, 200)
    assert choice.choose(one) is None
    choice.add(large)
    assert choice.missing == [small]
    assert [choice.choose(one) for _ in range(3)] == [large, large, small]
    assert [choice.has_room(StepSize(*size)) for size in ((8, 256), (9, 200), (1, 257))] == [True, False, False]
    assert choice.choose(StepSize(9, 200)) is None


class ScarceGraphs(ComputedGraphs):
    """The second rank has memory for three."""

    captured = 0
    made: ClassVar[list[ScarceGraphs]] = []

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.made.append(self)

    def capture(self, shape: GraphShape) -> bool:
        self.captured += 1
        if self.captured > 3 and threading.current_thread().name.endswith("_1"):
            return False
        return super().capture(shape)


# Of these requests none hangs on rounding, which differs where sums are taken over ranks.
FIRM = 2


def test_ranks_compute_prompts_by_the_same_graphs(folder, mixed):
    expected = answers_alone(folder, FIRM)

    def run(group: ThreadGroup) -> tuple[dict[str, list[int]], Counter[StepKind]]:
        engine = engine_of(folder, group, **mixed)
        engine.overlaps = True
        return answers(engine, seed=FIRM), Counter(engine.steps)

    (first, steps), (second, others) = together(2, run)
    assert first == second == expected
    assert steps == others
    assert steps[StepKind.MIXED_GRAPH] > 20


def test_ranks_keep_the_same_graphs_and_overlap_alike(folder, graphs, monkeypatch):
    """A graph that one rank has no memory for is none, and the answers are those of one process."""
    expected = answers_alone(folder, FIRM)
    monkeypatch.setattr(runner, "StepGraphs", ScarceGraphs)
    ScarceGraphs.made.clear()

    def run(group: ThreadGroup) -> tuple[dict[str, list[int]], Counter[StepKind]]:
        threading.current_thread().name = f"rank_{group.rank}"
        engine = engine_of(folder, group, enforce_eager=False)
        engine.overlaps = True
        while engine.capture_next():
            pass
        return answers(engine, seed=FIRM), Counter(engine.steps)

    (first, steps), (second, others) = together(2, run)
    assert first == second == expected
    assert steps == others
    assert steps[StepKind.GRAPH] > 0
    assert {graphs.choice.choose(StepSize(1, 10)) for graphs in ScarceGraphs.made} == {GraphShape(4, 256)}
