"""What the benchmarks' client sends, and what it reads from when answers came."""

from __future__ import annotations

import json
import random

import pytest

from appliance.bench.answers import Answer
from tests.bench.load import FIRST_TOKEN_ID, Load, _body, measured, quiet_gaps


def test_both_servers_get_the_same_prompts_and_nobody_the_same_twice():
    load = Load(tokens_in=16, tokens_out=4, streams=2, requests=2)

    def prompts(seed: str) -> list[list[int]]:
        rng = random.Random(seed)
        return [json.loads(_body("m", load, rng))["prompt"] for _ in range(2)]

    assert prompts("1") == prompts("1")
    assert len({tuple(prompt) for seed in ("1", "2") for prompt in prompts(seed)}) == 4
    assert all(len(prompt) == 16 and min(prompt) >= FIRST_TOKEN_ID for prompt in prompts("1"))


def test_a_load_is_timed_from_its_first_request_to_its_last_token():
    answers = [Answer(10.0, [10.5, 11.0, 11.5], 3), Answer(10.0, [10.7, 11.2, 12.0], 3)]
    found = measured(answers)
    assert found.tokens_per_s == pytest.approx(6 / 2.0)
    assert found.first_token == pytest.approx(0.6)
    assert found.token == pytest.approx((0.5 + 0.65) / 2)


def test_gaps_while_any_request_waits_for_its_first_token_do_not_count():
    long = Answer(0.0, [1.0, 2.0, 3.0, 4.0, 5.0], 5)
    late = Answer(2.5, [3.5, 4.25], 2)  # its prefill lies in the gaps from 2 to 3 and from 3 to 4
    assert sorted(quiet_gaps([long, late])) == [0.75, 1.0, 1.0]
    assert quiet_gaps([Answer(0.0, [1.0, 2.0], 2), Answer(0.5, [3.0], 1)]) == []
