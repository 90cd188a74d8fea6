"""Sampling: what is drawn depends on a row's own logits, parameters and uniform number, and on nothing else."""

from __future__ import annotations

import pytest
import torch

from kernels.sampling.batch import Penalties, SamplingBatch
from kernels.sampling.random import uniform
from kernels.sampling.reference import sample


def truncated(
    rows: list[int], draws: list[float], *, vocab: int, k: int = 0, p: float = 1.0, min_p: float = 0.0, t: float = 1.0
):
    n = len(rows)
    return SamplingBatch(
        truncated_rows=rows,
        truncated_temperature=torch.full((n,), t),
        truncated_uniform=torch.tensor(draws),
        top_k=torch.full((n,), k or vocab),
        top_p=torch.full((n,), p),
        min_p=torch.full((n,), min_p),
    )


def plain(rows: list[int], draws: list[float], t: float = 1.0) -> SamplingBatch:
    return SamplingBatch(
        plain_rows=rows, plain_temperature=torch.full((len(rows),), t), plain_uniform=torch.tensor(draws)
    )


def test_greedy_rows_take_the_most_likely_token_and_report_the_models_own_logprobs():
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 0.0, 0.0]])
    result = sample(logits.clone(), SamplingBatch(logprobs=2))
    assert result.token_ids.tolist() == [1, 0]
    expected = torch.log_softmax(logits, -1)
    assert result.logprobs is not None
    torch.testing.assert_close(result.logprobs, expected.max(-1).values)
    assert result.top_token_ids is not None
    assert result.top_token_ids.tolist() == [[1, 2], [0, 1]]


def test_a_plain_draw_follows_the_softmax():
    """4000 draws at evenly spread uniforms hit each token in proportion to its probability, within a thousandth."""
    logits = torch.randn(1, 11, generator=torch.Generator().manual_seed(0)).expand(4000, 11)
    draws = ((torch.arange(4000) + 0.5) / 4000).tolist()
    result = sample(logits.clone(), plain(list(range(4000)), draws, t=0.7))
    share = torch.bincount(result.token_ids, minlength=11) / 4000
    torch.testing.assert_close(share, torch.softmax(logits[0] / 0.7, -1), atol=1e-3, rtol=0)


def test_top_k_top_p_and_min_p_each_limit_the_tokens_that_can_be_drawn():
    logits = torch.log(torch.tensor([0.4, 0.3, 0.2, 0.06, 0.04])).repeat(100, 1)
    rows = list(range(100))
    draws = ((torch.arange(100) + 0.5) / 100).tolist()

    def drawn(**limits: float) -> set[int]:
        return set(sample(logits.clone(), truncated(rows, draws, vocab=5, **limits)).token_ids.tolist())  # type: ignore[arg-type]

    assert drawn(k=2) == {0, 1}
    assert drawn(p=0.65) == {0, 1}
    assert drawn(p=0.75) == {0, 1, 2}
    assert drawn(min_p=0.2) == {0, 1, 2}
    assert drawn(k=1) == {0}
    assert drawn(p=1e-9) == {0}
    assert drawn() == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("temperature", [1e-3, 1e-20, 1e-39, 1e-45])
def test_a_tiny_temperature_is_as_good_as_greedy(temperature):
    logits = torch.tensor([[1.0, 7.0, 6.9, -3.0]])
    assert sample(logits.clone(), plain([0], [0.999], t=temperature)).token_ids.item() == 1
    assert sample(logits.clone(), truncated([0], [0.999], vocab=4, k=3, t=temperature)).token_ids.item() == 1


def test_the_last_uniform_never_draws_a_token_of_probability_zero():
    logits = torch.tensor([[0.0, 0.0, -torch.inf]])
    last = 1 - 2**-24
    assert sample(logits.clone(), plain([0], [last])).token_ids.item() == 1
    assert sample(logits.clone(), truncated([0], [last], vocab=3, k=2)).token_ids.item() in (0, 1)


def test_a_rows_draw_does_not_depend_on_its_neighbours():
    """The same row alone, or between greedy and truncated neighbours, draws the same token."""
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(3))
    alone = sample(logits[1:2].clone(), plain([0], [0.42])).token_ids.item()
    mixed = SamplingBatch(
        plain_rows=[1],
        plain_temperature=torch.ones(1),
        plain_uniform=torch.tensor([0.42]),
        truncated_rows=[2],
        truncated_temperature=torch.ones(1),
        truncated_uniform=torch.tensor([0.9]),
        top_k=torch.tensor([5]),
        top_p=torch.ones(1),
        min_p=torch.zeros(1),
    )
    result = sample(logits.clone(), mixed)
    assert result.token_ids[1].item() == alone
    assert result.token_ids[0].item() == logits[0].argmax().item()


def test_penalties_change_only_their_row_and_only_seen_tokens():
    logits = torch.tensor([[2.0, -1.0, 1.0, 0.5], [2.0, -1.0, 1.0, 0.5]])
    changed = logits.clone()
    penalties = Penalties(0, torch.tensor([1]), torch.tensor([0, 0, 2]), presence=0.5, frequency=0.25, repetition=2.0)
    sample(changed, SamplingBatch(penalties=[penalties]))
    torch.testing.assert_close(changed[0], torch.tensor([2 / 2 - 0.5 - 0.5, -2.0, 1 / 2 - 0.5 - 0.25, 0.5]))
    assert torch.equal(changed[1], logits[1])


def test_a_forbidden_token_is_never_drawn():
    logits = torch.tensor([[9.0, 1.0, 0.0]])
    assert sample(logits, SamplingBatch(forbidden=[(0, [0])])).token_ids.item() == 1


def test_rows_with_nan_are_told_apart():
    logits = torch.tensor([[0.0, 1.0], [torch.nan, 1.0], [torch.inf, 0.0]])
    assert sample(logits, SamplingBatch()).finite.tolist() == [True, False, False]


def test_uniform_numbers_depend_on_seed_and_position_alone_and_fill_the_interval():
    numbers = [uniform(seed, position) for seed in (0, 1, 2**64 - 1) for position in range(1000)]
    assert len(set(numbers)) > 2990
    assert all(0 <= number < 1 for number in numbers)
    assert abs(sum(numbers) / len(numbers) - 0.5) < 0.02
    assert uniform(7, 3) == uniform(7, 3) != uniform(7, 4)
