"""What the benchmarks' client sends, and what it reads from when answers came."""

from __future__ import annotations

import asyncio
import json
import random

import pytest

from tests.bench import stand_in
from tests.bench.load import FIRST_TOKEN_ID, Answer, Load, _answer, _body, measured, quiet_gaps


async def asked(body: bytes, respond=stand_in.answer) -> Answer:
    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        return await _answer(f"http://{host}:{port}", body)


def test_both_servers_get_the_same_prompts_and_nobody_the_same_twice():
    load = Load(tokens_in=16, tokens_out=4, streams=2, requests=2)

    def prompts(seed: str) -> list[list[int]]:
        rng = random.Random(seed)
        return [json.loads(_body("m", load, rng))["prompt"] for _ in range(2)]

    assert prompts("1") == prompts("1")
    assert len({tuple(prompt) for seed in ("1", "2") for prompt in prompts(seed)}) == 4
    assert all(len(prompt) == 16 and min(prompt) >= FIRST_TOKEN_ID for prompt in prompts("1"))


async def test_events_are_counted_whatever_the_chunks_that_carry_them():
    got = await asked(_body("m", Load(8, 5, 1, 1), random.Random(0)))
    assert (len(got.events), got.tokens) == (5, 5)
    assert got.sent <= got.events[0] <= got.events[-1]


async def test_an_answer_that_is_refused_or_ends_early_is_no_figure():
    async def refuses(reader, writer):
        await reader.readuntil(b"{}")
        stand_in.refuse(writer)
        writer.close()

    async def breaks(reader, writer):
        await reader.readuntil(b"{}")
        line = b'data: {"choices": [{"text": "a"}]}\n'
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(line), line))
        writer.close()

    for respond in (refuses, breaks):
        with pytest.raises(RuntimeError):
            await asked(b"{}", respond)


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
