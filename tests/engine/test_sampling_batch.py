"""From requests to rows: what each asks for, and what its own history adds."""

from __future__ import annotations

import itertools
import random
import timeit
from collections import Counter

import pytest
import torch

from appliance.core_protocol import SamplingParams
from appliance.engine.histories import TokenHistories
from appliance.engine.request import Request
from appliance.engine.sampling import sampling_batch
from kernels.sampling.batch import FORBIDDEN, REPETITION, TEMPERATURE, TOP_K, UNIFORM, SamplingBatch
from kernels.sampling.random import uniform

CPU = torch.device("cpu")
VOCAB = 100
EOS = frozenset({2, 3})


slots = itertools.count()


@pytest.fixture(autouse=True)
def _fresh_histories(monkeypatch):
    monkeypatch.setattr(f"{__name__}.histories", make_histories())


def make_histories() -> TokenHistories:
    return TokenHistories(vocab_size=VOCAB, eos_token_ids=EOS, max_num_seqs=64, max_model_len=8192, device=CPU)


histories = make_histories()


def request(prompt: tuple[int, ...] = (5, 6, 5), **params: object) -> Request:
    made = Request("r", list(prompt), SamplingParams(**params), seed=7)  # type: ignore[arg-type]
    made.slot, made.admission = next(slots), 0
    return made


def batch(*requests: Request) -> SamplingBatch:
    return sampling_batch(requests, histories, CPU)


def edits(made: SamplingBatch) -> set[tuple[int, ...]]:
    assert made.edits is not None
    return set(map(tuple, made.edits.T.tolist()))


def test_greedy_requests_need_nothing_on_the_device():
    made = batch(request(temperature=0.0), request(temperature=0.9, top_k=1), request(temperature=0.0, top_k=5))
    assert made == SamplingBatch()


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.5},
        {"min_tokens": 2},
        {"logprobs": 0},
        {"presence_penalty": 0.5},
        {"frequency_penalty": -0.5},
        {"repetition_penalty": 0.9},
        {"logit_bias": {5: 1.0}},
    ],
)
def test_a_request_is_plain_only_if_it_wants_nothing_but_the_most_likely_token(params):
    """Steps of plain requests alone prepare nothing, so that whatever asks for more must not be taken for one."""
    assert request(temperature=0.0).is_plain
    assert not request(temperature=0.0, min_tokens=1).is_plain
    asking = request(**({"temperature": 0.0} | params))
    assert not asking.is_plain
    asking.output_token_ids.append(8)
    assert batch(request(temperature=0.0), asking) != SamplingBatch()


def test_a_request_samples_by_its_seed_and_how_far_it_is():
    one, other = request(temperature=0.5), request(temperature=0.25, top_k=9)
    other.output_token_ids += [8, 9]
    made = batch(one, request(temperature=0.0), other)
    assert made.samples
    assert made.truncates
    assert made.parameters is not None
    assert made.parameters[TEMPERATURE].tolist() == [0.5, 0.0, 0.25]
    assert made.parameters[TOP_K].tolist() == [0, 0, 9]
    assert made.parameters[UNIFORM].tolist() == [uniform(7, 0), 0.0, uniform(7, 2)]
    assert not batch(one).truncates


def test_penalties_count_what_a_request_has_written_as_it_goes_on():
    """The prompt matters to repetition only; tokens of the output are counted once, however often it is asked."""
    plain = request(presence_penalty=0.5, temperature=0.0)
    repeating = request(repetition_penalty=1.2, temperature=0.0)
    assert edits(batch(plain, repeating)) == {(1, 5, 0), (1, 6, 0)}
    for one in (plain, repeating):
        one.output_token_ids += [6, 9, 6]
    for _ in range(2):
        made = batch(plain, repeating)
        assert edits(made) == {(0, 6, 2), (0, 9, 1), (1, 5, 0), (1, 6, 2), (1, 9, 1)}
    assert made.parameters is not None
    torch.testing.assert_close(made.parameters[REPETITION], torch.tensor([1.0, 1.2]))


def test_all_of_a_long_output_is_counted():
    """Through every growth of what holds the counts, one token a step or several."""
    rng = random.Random(0)
    one = request(repetition_penalty=1.2)
    while len(one.output_token_ids) < 500:
        one.output_token_ids += [rng.randrange(10, VOCAB) for _ in range(rng.randrange(1, 4))]
        counts = Counter(one.output_token_ids)
        assert edits(batch(one)) == {(0, token, counts[token]) for token in {5, 6, *counts}}


def test_what_a_prompt_holds_is_not_gone_through_again_in_every_step():
    """A hundred times the prompt may take some ten times as long, as it is copied, and no more."""

    def step_s(prompt: int) -> float:
        requests = [request(tuple(range(prompt)), repetition_penalty=1.2) for _ in range(16)]
        batch(*requests)
        return min(timeit.repeat(lambda: batch(*requests), number=1, repeat=50))

    assert step_s(4000) < 10 * step_s(40)


def test_what_would_end_a_request_too_soon_is_forbidden():
    """Ids beyond the vocabulary cannot be sampled anyway, and are not looked for."""
    short = request(min_tokens=2, stop_token_ids=(50, VOCAB, -1), temperature=0.0)
    assert edits(batch(short)) == {(0, token, FORBIDDEN) for token in (2, 3, 50)}
    short.output_token_ids.append(8)
    assert edits(batch(short)) == {(0, token, FORBIDDEN) for token in (2, 3, 50)}
    short.output_token_ids.append(8)
    assert batch(short).edits is None


def test_biases_stand_in_the_rows_of_their_requests():
    made = batch(request(temperature=0.0), request(temperature=0.0, logit_bias={5: 1.5, 9: -2.0}))
    assert made.edits is None
    assert made.biases is not None
    assert made.biases[:2].tolist() == [[1, 1], [5, 9]]
    assert made.biases[2].view(torch.float32).tolist() == [1.5, -2.0]


def test_the_most_alternatives_that_any_request_wants_are_reported():
    assert batch(request(logprobs=0), request(), request(logprobs=3)).logprobs == 3
    assert batch(request()).logprobs is None
