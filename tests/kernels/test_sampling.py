"""Sampling: what is sampled depends on a row's own logits, parameters and uniform number, and on nothing else.

Each promise holds for plain torch and for Triton, interpreted.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.cases import error
from kernels.sampling import reference, triton
from kernels.sampling.batch import FORBIDDEN, Row, SamplingBatch, pack
from kernels.sampling.cases import cases
from kernels.sampling.random import uniform
from kernels.sampling.variants import variants
from tests.kernels.recorded import recorded

CPU = torch.device("cpu")
LAST = 1 - 2**-24

# Rows cost much in the interpreter, so that it gets fewer where many samples show a distribution.
backends = pytest.mark.parametrize("sample", [reference.sample, triton.sample], ids=["torch", "triton"])
SAMPLES = {reference.sample: 400, triton.sample: 16}


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def seen(*tokens: tuple[int, int]) -> np.ndarray:
    """Each token, and how often it stands in the output."""
    return np.array(tokens, dtype=np.int32).reshape(-1, 2).T


def spread(row: Row, count: int) -> list[Row]:
    """The same wish with evenly spread uniform numbers."""
    return [row._replace(uniform=(index + 0.5) / count) for index in range(count)]


@pytest.mark.parametrize("case", list(cases(90)), ids=lambda case: case.name)
def test_triton_agrees_with_the_reference(case):
    for result, expected in zip(case.run(triton.sample, CPU), case.run(reference.sample, CPU), strict=True):
        assert error(result, expected) <= case.tolerance


def test_the_cases_launch_every_variant():
    """Those with logprobs look up the sampled tokens, of which there are none here."""
    with recorded([triton]) as launched:
        for case in cases(90):
            if "logprobs" not in case.name:
                case.run(triton.sample, CPU)
    assert launched == set(variants(90))


@backends
def test_greedy_rows_take_the_most_likely_token_and_report_the_models_own_logprobs(sample):
    """Penalties and forbidden tokens change what is sampled, and nothing of what is reported."""
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 0.0, 0.0], [5.0, 0.0, 1.0]])
    rows = [Row(), Row(), Row(forbidden=[0], seen=seen((2, 1)), presence=2.0)]
    result = sample(logits.clone(), pack(rows, CPU, logprobs=1))
    assert result.token_ids.tolist() == [1, 0, 1]
    expected = torch.log_softmax(logits, -1)
    torch.testing.assert_close(result.logprobs, expected[torch.arange(3), result.token_ids])
    torch.testing.assert_close(result.top_logprobs, expected.max(-1, keepdim=True).values)
    assert result.top_token_ids.tolist() == [[1], [0], [0]]


@backends
def test_of_equally_likely_tokens_a_greedy_row_takes_the_first(sample):
    logits = torch.zeros(2, 9000)
    logits[0, [77, 4500, 8999]] = 1.0
    assert sample(logits, SamplingBatch()).token_ids.tolist() == [77, 0]


@backends
def test_a_plain_sample_follows_the_softmax(sample):
    """Samples at evenly spread uniforms hit each token in proportion to its probability."""
    count = SAMPLES[sample]
    logits = randn(1, 11)
    result = sample(logits.repeat(count, 1), pack(spread(Row(0.7), count), CPU))
    share = torch.bincount(result.token_ids, minlength=11) / count
    torch.testing.assert_close(share, torch.softmax(logits[0] / 0.7, -1), atol=1.01 / count, rtol=0)


@backends
def test_a_truncated_sample_follows_what_is_left_of_the_softmax(sample):
    """Top-k first, then top-p of what it leaves; kept tokens keep their proportions, in the vocabulary's order."""
    count = SAMPLES[sample]
    probabilities = torch.tensor([0.1, 0.4, 0.05, 0.25, 0.2])
    rows = spread(Row(1.0, top_k=4, top_p=0.85), count)  # top-k leaves 0.95, of which 0.85 is 0.8075
    result = sample(torch.log(probabilities).repeat(count, 1), pack(rows, CPU))
    assert result.token_ids.tolist() == sorted(result.token_ids.tolist())
    share = torch.bincount(result.token_ids, minlength=5) / count
    torch.testing.assert_close(share, torch.tensor([0, 0.4, 0, 0.25, 0.2]) / 0.85, atol=1.01 / count, rtol=0)


@backends
def test_top_k_top_p_and_min_p_each_limit_the_tokens_that_can_be_sampled(sample):
    """The least likely token that is left, which the last uniform number samples, as they are in order here."""
    left = [
        (Row(top_k=2), 1),
        (Row(top_k=1), 0),
        (Row(top_k=5), 4),
        (Row(top_k=99), 4),
        (Row(top_p=0.65), 1),
        (Row(top_p=0.75), 2),
        (Row(top_p=1e-9), 0),
        (Row(min_p=0.2), 2),
        (Row(min_p=1.0), 0),
        (Row(top_k=4, top_p=0.99, min_p=0.14), 3),
        (Row(), 4),
    ]
    logits = torch.log(torch.tensor([0.4, 0.3, 0.2, 0.06, 0.04])).repeat(len(left), 1)
    result = sample(logits, pack([row._replace(temperature=1.0, uniform=LAST) for row, _ in left], CPU))
    assert result.token_ids.tolist() == [last for _, last in left]


@backends
def test_equally_likely_tokens_are_kept_or_dropped_together(sample):
    """The first and the last token that are left, which the first and the last uniform number sample."""
    left = [(Row(top_k=2), (1, 5)), (Row(top_p=0.5), (1, 5)), (Row(top_k=1), (1, 1)), (Row(top_k=5), (0, 5))]
    rows = [row._replace(temperature=1.0, uniform=end) for row, _ in left for end in (0.0, LAST)]
    logits = torch.tensor([0.0, 2.0, 1.0, 1.0, -0.0, 1.0]).repeat(len(rows), 1)
    assert sample(logits, pack(rows, CPU)).token_ids.tolist() == [token for _, ends in left for token in ends]


@backends
@pytest.mark.parametrize("temperature", [1e-3, 1e-20, 1e-39, 1e-45])
def test_a_tiny_temperature_is_as_good_as_greedy(sample, temperature):
    logits = torch.tensor([[1.0, 7.0, 6.9, -3.0]]).repeat(3, 1)
    rows = [Row(temperature, LAST), Row(temperature, LAST, top_k=3), Row(temperature, LAST, top_p=0.99)]
    assert sample(logits, pack(rows, CPU)).token_ids.tolist() == [1, 1, 1]


@backends
def test_the_last_uniform_never_samples_a_token_of_probability_zero(sample):
    logits = torch.tensor([[0.0, 0.0, -torch.inf]]).repeat(3, 1)
    rows = [Row(1.0, LAST), Row(1.0, LAST, top_k=3), Row(1.0, LAST, top_p=0.9999)]
    assert sample(logits, pack(rows, CPU)).token_ids.tolist() == [1, 1, 1]


@backends
def test_a_rows_sample_does_not_depend_on_its_neighbours(sample):
    """Each row samples alone what it samples among others of all kinds, bit for bit the same logprob too."""
    logits = randn(6, 4999, seed=3)
    rows = [
        Row(1.0, 0.42), Row(), Row(1.0, 0.9, top_k=5), Row(0.9, 0.3, top_p=0.8),
        Row(2.0, 0.77, top_k=4000, top_p=0.999), Row(1.0, 0.5, min_p=0.1, seen=seen((1, 2)), repetition=1.3),
    ]  # fmt: skip
    together = sample(logits.clone(), pack(rows, CPU, logprobs=0))
    for index, row in enumerate(rows):
        alone = sample(logits[index : index + 1].clone(), pack([row], CPU, logprobs=0))
        assert alone.token_ids[0] == together.token_ids[index]
        assert alone.logprobs[0] == together.logprobs[index]


@backends
def test_penalties_change_only_their_row_and_only_seen_tokens(sample):
    logits = torch.tensor([[2.0, -1.0, 1.0, 0.5], [2.0, -1.0, 1.0, 0.5]])
    changed = logits.clone()
    row = Row(seen=seen((1, 0), (0, 2), (2, 1)), presence=0.5, frequency=0.25, repetition=2.0)
    sample(changed, pack([row, Row()], CPU))
    torch.testing.assert_close(changed[0], torch.tensor([2 / 2 - 0.5 - 0.5, -2.0, 1 / 2 - 0.5 - 0.25, 0.5]))
    assert torch.equal(changed[1], logits[1])


@backends
def test_a_forbidden_token_is_never_sampled_even_if_penalties_favour_it(sample):
    logits = torch.tensor([[9.0, 1.0, 0.0]])
    row = Row(1.0, 0.0, top_k=3, forbidden=[0], seen=seen((0, 1)), presence=-100.0)
    assert sample(logits, pack([row], CPU)).token_ids.item() == 1


@backends
def test_a_bias_is_added_to_its_rows_logits_after_penalties(sample):
    """What is reported stays the model's own."""
    logits = torch.tensor([[2.0, -1.0, 1.0, 0.5], [2.0, -1.0, 1.0, 0.5]])
    changed = logits.clone()
    row = Row(seen=seen((0, 2)), presence=0.5, biases={0: -1.0, 3: 4.0})
    result = sample(changed, pack([row, Row()], CPU, logprobs=1))
    torch.testing.assert_close(changed, torch.tensor([[0.5, -1.0, 1.0, 4.5], [2.0, -1.0, 1.0, 0.5]]))
    assert result.token_ids.tolist() == [3, 0]
    torch.testing.assert_close(result.logprobs, torch.log_softmax(logits, -1)[[0, 1], [3, 0]])


@backends
def test_a_bias_changes_probabilities_before_temperature(sample):
    """By the factor exp(bias / temperature)."""
    count = SAMPLES[sample]
    logits = torch.zeros(count, 3)
    result = sample(logits, pack(spread(Row(0.5, biases={1: 0.5, 2: -100.0}), count), CPU))
    share = torch.bincount(result.token_ids, minlength=3) / count
    expected = torch.softmax(torch.tensor([0.0, 1.0, -200.0]), -1)
    torch.testing.assert_close(share, expected, atol=1.01 / count, rtol=0)


@backends
def test_no_bias_allows_a_forbidden_token_or_hides_a_broken_row(sample):
    """Forbidden by the row itself or by its grammar."""
    logits = torch.tensor([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0], [torch.nan, 1.0, 2.0]])
    allowed = torch.tensor([[1, 0b011]], dtype=torch.int32)
    rows = [Row(forbidden=[2], biases={2: 100.0}), Row(biases={2: 100.0}), Row(biases={0: 1.0})]
    result = sample(logits, pack(rows, CPU, allowed=allowed))
    assert result.token_ids[:2].tolist() == [1, 1]
    assert result.finite.tolist() == [True, True, False]


def test_a_token_stands_once_in_a_rows_edits_and_what_is_forbidden_prevails():
    """Kernels make edits in any order, so that two of one token would contradict each other."""
    rows = [
        Row(),
        Row(seen=seen((1, 0), (4, 2))),
        Row(seen=seen((1, 3), (5, 1)), forbidden=[5, 6, 5]),
        Row(seen=seen()),
    ]
    edits = pack(rows, CPU).edits
    assert edits.T.tolist() == [[1, 1, 0], [1, 4, 2], [2, 1, 3], [2, 5, FORBIDDEN], [2, 6, FORBIDDEN]]


@backends
def test_rows_that_are_not_finite_are_distinguished_and_their_token_is_in_range(sample):
    logits = torch.tensor([[0.0, 1.0], [torch.nan, 1.0], [torch.inf, 0.0], [-torch.inf, -torch.inf]]).repeat(3, 1)
    rows = [Row()] * 4 + [Row(1.0, 0.5)] * 4 + [Row(1.0, 0.5, top_k=1, top_p=0.5)] * 4
    result = sample(logits, pack(rows, CPU))
    assert result.finite.tolist() == [True, False, False, False] * 3
    assert ((result.token_ids >= 0) & (result.token_ids < 2)).all()


def test_uniform_numbers_depend_on_seed_and_position_alone_and_fill_the_interval():
    numbers = [uniform(seed, position) for seed in (0, 1, 2**64 - 1) for position in range(1000)]
    assert len(set(numbers)) > 2990
    assert all(0 <= number < 1 for number in numbers)
    assert abs(sum(numbers) / len(numbers) - 0.5) < 0.02
    assert uniform(7, 3) == uniform(7, 3) != uniform(7, 4)
