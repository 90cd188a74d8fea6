"""The load that benchmarks put on a server: requests of random token ids, streamed, a fixed number at a time.

Every prompt is drawn from the load and a seed, so that both servers of a comparison get the same ones and no server
sees one twice: no prefix is found in a cache. Where the machine has processors to spare, several processes ask.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

from appliance.bench.answers import Answer, RequestFailedError, ask
from appliance.bench.connection import Pool
from appliance.bench.server import PATHS
from appliance.bench.target import read_url

STREAMS_PER_PROCESS = 16
FIRST_TOKEN_ID = 300  # below it are the special tokens and the bytes, whose text may be held back for the next token
VOCABULARY = 30_000
TIMEOUT_S = 1800.0


class Load(NamedTuple):
    tokens_in: int
    tokens_out: int
    streams: int
    requests: int

    @property
    def name(self) -> str:
        return f"{self.tokens_in}/{self.tokens_out} x {self.streams}"


class Measured(NamedTuple):
    """Seconds, but for the first. Gaps are those between two events of an answer while no request waits for its first
    token, so that no prefill lengthens them; 0 where there was no such gap."""

    tokens_per_s: float
    first_token: float
    token: float
    gap_median: float
    gap_p99: float


class Client:
    """Asks from as many processes as the load and this machine allow, if not from so many as are given; to be used as a
    context manager."""

    def __init__(self, processes: int | None = None) -> None:
        self.processes = processes or max(len(os.sched_getaffinity(0)) // 4, 1)
        # Spawned: a fork of a process with threads may stand still.
        self._pool = ProcessPoolExecutor(self.processes, multiprocessing.get_context("spawn"))

    def __enter__(self) -> Client:
        list(self._pool.map(abs, range(self.processes)))  # started before the first load
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def run(self, url: str, model: str, load: Load, seed: object) -> Measured:
        rng = random.Random(f"{seed} {load}")
        bodies = [_body(model, load, rng) for _ in range(load.requests)]
        answers = self.put(url, PATHS["completions"], bodies, load.streams)
        for answer in answers:
            if answer.tokens != load.tokens_out:
                raise RuntimeError(f"{url} answered {answer.tokens} tokens, and {load.tokens_out} were asked for")
        return measured(answers)

    def put(self, url: str, path: str, bodies: Sequence[bytes], streams: int) -> list[Answer]:
        """Send all of `bodies`, `streams` at a time."""
        shares = max(min(self.processes, streams // STREAMS_PER_PROCESS), 1)
        started = [
            self._pool.submit(put, url, path, bodies[share::shares], len(range(share, streams, shares)))
            for share in range(shares)
        ]
        return [answer for each in started for answer in each.result()]


def _body(model: str, load: Load, rng: random.Random) -> bytes:
    prompt = rng.choices(range(FIRST_TOKEN_ID, VOCABULARY), k=load.tokens_in)
    request: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": load.tokens_out, "temperature": 0}
    request |= {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(request).encode()


def measured(answers: Sequence[Answer]) -> Measured:
    seconds = max(answer.events[-1] for answer in answers) - min(answer.sent for answer in answers)
    gaps = sorted(quiet_gaps(answers))
    return Measured(
        tokens_per_s=sum(answer.tokens for answer in answers) / seconds,
        first_token=statistics.median(answer.events[0] - answer.sent for answer in answers),
        token=statistics.median((a.events[-1] - a.events[0]) / max(a.tokens - 1, 1) for a in answers),
        gap_median=statistics.median(gaps) if gaps else 0.0,
        gap_p99=gaps[int(0.99 * (len(gaps) - 1))] if gaps else 0.0,
    )


def quiet_gaps(answers: Sequence[Answer]) -> list[float]:
    """Seconds between the events of an answer, without those while a request waited for its first token."""
    waits = sorted((answer.sent, answer.events[0]) for answer in answers)
    gaps = sorted((b, a) for answer in answers for a, b in zip(answer.events, answer.events[1:], strict=False))
    quiet, waiting_until, next_wait = [], 0.0, 0
    for ended, began in gaps:
        while next_wait < len(waits) and waits[next_wait][0] < ended:
            waiting_until = max(waiting_until, waits[next_wait][1])
            next_wait += 1
        if waiting_until <= began:
            quiet.append(ended - began)
    return quiet


def put(url: str, path: str, bodies: Sequence[bytes], streams: int) -> list[Answer]:

    async def together() -> list[Answer]:
        free, pool = asyncio.Semaphore(streams), Pool(read_url(url))

        async def one(body: bytes) -> Answer:
            async with free:
                try:
                    return await ask(pool, path, body, TIMEOUT_S)
                except RequestFailedError as error:  # which cannot be sent from one process to another
                    raise RuntimeError(f"{url}{path}: {error}") from None

        try:
            return await asyncio.gather(*(one(body) for body in bodies))
        finally:
            pool.close()

    return asyncio.run(together())
