"""Token histories: what is uploaded depends on what is new, and what is gathered is what each request has seen."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from appliance.checkpoint.config import read_config
from appliance.checkpoint.memory.native import HISTORY_BYTES
from appliance.checkpoint.memory.step import SAMPLING, StepShape, moments
from appliance.core_protocol import SamplingParams, Submit
from appliance.engine.histories import TokenHistories
from appliance.engine.request import Request
from appliance.engine.sampling import sampling_batch
from kernels.sampling import triton
from kernels.sampling.batch import FORBIDDEN
from tests.kernels.peak import Peak
from tests.parity.conftest import generate, make_engine, tokens
from tests.tiny import write_checkpoint

EOS = 2
PENALTIES: dict[str, Any] = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.25}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("histories") / "model", "qwen3")


@pytest.fixture
def uploaded(monkeypatch):
    """The elements of every array that has been made a tensor, by which all that is uploaded goes."""
    counts: list[int] = []
    own = torch.from_numpy

    def counting(array: Any) -> torch.Tensor:
        counts.append(array.size)
        return own(array)

    monkeypatch.setattr(torch, "from_numpy", counting)
    return counts


def uploads(engine: Any, counts: list[int]) -> list[int]:
    """The elements that each step until the end uploads."""
    steps = []
    while not engine.idle:
        counts.clear()
        engine.step()
        steps.append(sum(counts))
    return steps


@pytest.mark.parametrize(
    "asked",
    [PENALTIES, {"min_tokens": 30, "stop_token_ids": tuple(range(6, 400))}],
    ids=["penalties", "forbidden tokens"],
)
def test_a_history_is_uploaded_once_and_then_a_token_a_step(folder, uploaded, asked):
    """Whatever the prompt's length and however many tokens are forbidden."""
    engine = make_engine(folder, max_num_batched_tokens=1024)
    sampling = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, **asked)
    for name in ("one", "two"):
        prompt = random.Random(name).sample(range(6, 512), 200)
        assert engine.submit(Submit(request_id=name, prompt_token_ids=prompt, sampling=sampling)) is None
    first, *others = uploads(engine, uploaded)
    assert first > 400
    assert max(others) < 200, "two decodes: their blocks, positions and parameters, and what they sampled"


class Books:
    """Histories, and what they should hold by the requests' own lists."""

    vocab, slots = 60, 8

    def __init__(self) -> None:
        self.histories = TokenHistories(
            vocab_size=self.vocab,
            eos_token_ids=frozenset({EOS}),
            max_num_seqs=self.slots,
            max_model_len=64,
            device=torch.device("cpu"),
        )

    def check(self, requests: list[Request]) -> None:
        edits = self.histories.edits(requests)
        found = [] if edits is None else [tuple(edit) for edit in edits.T.tolist()]
        expected = {(row, *entry) for row, request in enumerate(requests) for entry in _entries(request).items()}
        assert len(found) == len(expected), "each token stands once"
        assert set(found) == expected


def _entries(request: Request) -> dict[int, int]:
    found: dict[int, int] = {}
    if request.sampling.repetition_penalty != 1:
        found |= dict.fromkeys(request.prompt_token_ids, 0)
    if request.has_penalties:
        found |= Counter(request.output_token_ids)
    if len(request.output_token_ids) < request.sampling.min_tokens:
        found |= dict.fromkeys((EOS, *request.stop_token_ids), FORBIDDEN)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_what_is_gathered_is_what_each_request_has_seen_as_requests_come_and_go(seed):
    """Rows and columns grow; slots change hands; some requests are preempted, and sit out steps."""
    rng = random.Random(seed)
    books, admissions = Books(), 0
    running: dict[int, Request] = {}
    waiting: list[Request] = []
    for _ in range(200):
        free = [slot for slot in range(books.slots) if slot not in running]
        if free and rng.random() < 0.3:
            request = waiting.pop() if waiting and rng.random() < 0.7 else _any_request(rng)
            admissions += 1
            request.slot, request.admission = rng.choice(free), admissions
            running[request.slot] = request
        if running and rng.random() < 0.2:
            left = running.pop(rng.choice(list(running)))
            waiting += [left] if rng.random() < 0.5 else []
        stepped = rng.sample(list(running.values()), rng.randint(0, len(running)))
        books.check(stepped)
        for request in stepped:
            forbidden = [token for token, count in _entries(request).items() if count == FORBIDDEN]
            request.output_token_ids.append(rng.choice([t for t in range(books.vocab) if t not in forbidden]))


def _any_request(rng: random.Random) -> Request:
    params: dict[str, Any] = {}
    if rng.random() < 0.5:
        params["repetition_penalty"] = 1.5
    if rng.random() < 0.5:
        params["frequency_penalty"] = 0.5
    if rng.random() < 0.5:
        params |= {"min_tokens": rng.randint(1, 8), "stop_token_ids": tuple(rng.sample(range(3, 60), 4))}
    prompt = [rng.randrange(3, 60) for _ in range(rng.randint(1, 40))]
    return Request("r", prompt, SamplingParams(temperature=0.0, **params), seed=0)


def test_preempted_requests_with_penalties_answer_as_they_do_alone(folder):
    """Blocks are scarce, so that requests lose their slots and get others."""
    rng = random.Random(7)
    asked = {f"r{i}": [rng.randrange(6, 500) for _ in range(3 + 11 * i)] for i in range(6)}
    expected: dict[str, list[int]] = {}
    for name, prompt in asked.items():
        expected |= {name: tokens(generate(make_engine(folder), {name: prompt}, **PENALTIES)[name])}
    engine = make_engine(folder, num_blocks=18)
    outputs = generate(engine, asked, **PENALTIES)
    assert engine.scheduler.num_preemptions
    assert {name: tokens(outputs[name]) for name in asked} == expected


def test_full_histories_take_what_is_planned(tmp_path, monkeypatch):
    """Every request has seen the whole vocabulary: when all are uploaded at once, and in the steps after that."""
    monkeypatch.setattr(triton, "launch", lambda *_: None)
    vocab, seqs, device = 4096, 16, torch.device("cpu")
    config = read_config(write_checkpoint(tmp_path / "model", "qwen3", vocab_size=vocab))
    shape = StepShape(
        tokens=vocab, sequences=seqs, item=4, fp8=False, backends={"sampling": "triton"}, history=vocab
    )  # fmt: skip
    (sampling,) = (moment for moment in moments(config, shape) if moment.name == SAMPLING)
    histories = TokenHistories(
        vocab_size=vocab, eos_token_ids=frozenset(), max_num_seqs=seqs, max_model_len=vocab, device=device
    )
    params = SamplingParams(temperature=0.0, **PENALTIES)
    requests = [Request("r", list(range(vocab)), params, seed=0) for _ in range(seqs)]
    for slot, request in enumerate(requests):
        request.slot = slot
    with Peak() as peak:
        for _ in range(3):
            logits = torch.zeros(seqs, vocab)
            triton.sample(logits, sampling_batch(requests, histories, device))
            for request in requests:
                request.output_token_ids.append(1)
    planned = sampling.total + seqs * vocab * HISTORY_BYTES
    assert 0.85 * planned <= peak.bytes <= planned
