"""`make bench-storm`: half an hour of random requests at twice what the engine takes at a time, on the CPU.

Clients of every API ask for whole and streamed answers, with schemas and tools, well and badly; some stop reading in
the middle, some hang up before anything comes. The memory of the processes may not grow, no request may be left
behind, no answer may be a server's error, and answers that were read to their end are the same when they are asked for
again, alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections import Counter
from typing import Any, Final, NamedTuple

import httpx
import psutil

from appliance.home import Home
from tests.bench.schemas import SCHEMAS
from tests.bench.servers import Server, ingot
from tests.bench.table import Figure, conclude, describe_machine
from tests.running import fetch, temporary_home, wait_for

MODEL: Final = "bundled"
SEATS: Final = 8  # requests that the engine takes at a time
CLIENTS: Final = 2 * SEATS
GROWTH_GOAL: Final = 0.03
REPLAYED: Final = 40
EVERY_S: Final = 5.0  # between two looks at the memory
WORDS: Final = ("what", "is", "a", "sealed", "cast", "kernel", "engine", "profile", "launch", "how", "do", "I", "stop")
TOOL: Final = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}
BAD: Final[list[tuple[str, dict[str, Any]]]] = [
    ("/v1/chat/completions", {"messages": []}),
    ("/v1/chat/completions", {"messages": [{"role": "tool", "content": "x", "tool_call_id": "none"}]}),
    ("/v1/completions", {"prompt": [1 << 30]}),
    ("/v1/completions", {"prompt": "x " * 9000}),
    ("/v1/responses", {"input": [{"type": "nothing"}]}),
    ("/v1/messages", {"max_tokens": 0, "messages": []}),
    ("/api/chat", {"messages": [{"role": "user", "content": "x"}], "options": {"temperature": "hot"}}),
]


class Asked(NamedTuple):
    path: str
    body: dict[str, Any]


class Storm:
    """What came of it so far."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.outcomes: Counter[str] = Counter()
        self.server_errors: list[str] = []
        self.samples: list[tuple[Asked, str]] = []

    async def client(self, number: int, until: float) -> None:
        rng = random.Random(number)
        async with httpx.AsyncClient(base_url=self.url, timeout=300) as http:
            while time.monotonic() < until:
                await self._ask(http, rng, _request(rng))

    async def _ask(self, http: httpx.AsyncClient, rng: random.Random, asked: Asked) -> None:
        patience = rng.random()
        if patience < 0.1:  # hangs up before an answer, or within it
            try:
                async with asyncio.timeout(rng.random() / 2):
                    await http.post(asked.path, json=asked.body)
            except TimeoutError:
                self.outcomes["hung up"] += 1
            return
        read = b""
        async with http.stream("POST", asked.path, json=asked.body) as answer:
            async for piece in answer.aiter_bytes():
                read += piece
                if patience < 0.3:
                    self.outcomes["stopped reading"] += 1
                    return
        self.outcomes[f"{answer.status_code}"] += 1
        text = read.decode(errors="replace")
        if answer.status_code >= 500 or (answer.status_code == 200 and '"server_error"' in text):
            self.server_errors.append(f"{asked.path} {answer.status_code}: {text[:300]}")
        if asked.path == "/v1/completions" and answer.status_code == 200 and not asked.body.get("stream"):
            self.samples.append((asked, json.loads(text)["choices"][0]["text"]))


def _request(rng: random.Random) -> Asked:
    if rng.random() < 0.1:
        return Asked(*rng.choice(BAD))
    text = " ".join(rng.choices(WORDS, k=rng.choice((1, 5, 20, 80))))
    messages = [{"role": "user", "content": text}]
    most, stream, seed = rng.randint(1, 120), rng.random() < 0.5, rng.randrange(1 << 31)
    sampled: dict[str, Any] = {"temperature": rng.choice((0, 0.7, 1)), "seed": seed, "stream": stream}
    kind = rng.randrange(7)
    if kind == 0:
        return Asked("/v1/completions", {"prompt": text, "max_tokens": most, **sampled})
    if kind == 1:
        return Asked("/v1/chat/completions", {"messages": messages, "max_tokens": most, **sampled, "n": 2})
    if kind == 2:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": rng.choice(SCHEMAS)}}
        return Asked(
            "/v1/chat/completions", {"messages": messages, "response_format": form, "max_tokens": 200} | sampled
        )
    if kind == 3:
        tools = [{"type": "function", "function": TOOL}]
        body = {"messages": messages, "tools": tools, "tool_choice": rng.choice(("auto", "required")), **sampled}
        return Asked("/v1/chat/completions", body | {"max_tokens": most})
    if kind == 4:
        return Asked("/v1/responses", {"input": text, "max_output_tokens": most, "stream": stream})
    if kind == 5:
        return Asked("/v1/messages", {"messages": messages, "max_tokens": most, "stream": stream})
    return Asked("/api/chat", {"messages": messages, "stream": stream, "options": {"num_predict": most}})


def memory_of(server: Server) -> int:
    """Bytes that all of the server's processes hold."""
    root = psutil.Process(server.pid)
    return sum(int(process.memory_info().rss) for process in (root, *root.children(recursive=True)))


async def blow(storm: Storm, server: Server, seconds: float) -> list[int]:
    """The memory, as it was looked at."""
    until, held = time.monotonic() + seconds, []

    async def look() -> None:
        while time.monotonic() < until:
            held.append(memory_of(server))
            await asyncio.sleep(min(EVERY_S, seconds / 16))  # four times in each quarter at least

    await asyncio.gather(look(), *(storm.client(number, until) for number in range(CLIENTS)))
    return held


def growth(held: list[int]) -> float:
    """From the second quarter of the time, when all code has run once, to the last."""
    quarter = len(held) // 4
    return statistics.median(held[-quarter:]) / statistics.median(held[quarter : 2 * quarter]) - 1


def left_behind(server: Server) -> int:
    """Requests that the engine still has, when all clients are gone."""

    def load() -> dict[str, Any]:
        found: dict[str, Any] = fetch(f"{server.url}/appliance/state")[1]["load"]
        return found

    def none() -> bool:
        return not load()["running"] and not load()["waiting"]

    try:
        wait_for("the end of all requests", none, 30)
    except TimeoutError:
        return int(load()["running"]) + int(load()["waiting"])
    return 0


def disagreements(storm: Storm) -> int:
    """Of the samples, those whose answer is another one when it is asked for alone."""
    rng, differ = random.Random(0), 0
    for asked, text in rng.sample(storm.samples, min(REPLAYED, len(storm.samples))):
        answer = httpx.post(storm.url + asked.path, json=asked.body, timeout=300)
        if answer.json()["choices"][0]["text"] != text:
            differ += 1
            print(f"{asked.body}\n  {text!r}\n  {answer.text[:300]}")
    return differ


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.storm", description="Random requests, for a long time."
    )
    parser.add_argument("--seconds", type=float, default=1800)
    options = parser.parse_args()
    describe_machine()
    with temporary_home() as folder:
        home = Home.at(folder).create()
        # In half precision, rounding differs between batches.
        settings = {"device": "cpu", "dtype": "float32", "max-num-seqs": SEATS, "max-model-len": 2048}
        server = ingot(home.root, MODEL, settings)
        try:
            server.start()
            storm = Storm(server.url)
            held = asyncio.run(blow(storm, server, options.seconds))
            left, differ = left_behind(server), disagreements(storm)
        finally:
            server.end()
    print(f"{sum(storm.outcomes.values()):,} requests: {dict(storm.outcomes)}; {held[0] >> 20} to {held[-1] >> 20} MiB")
    print("\n".join(storm.server_errors[:10]))
    replayed = f"of {min(REPLAYED, len(storm.samples))} answers asked for again alone, those that differ"
    return conclude(
        [
            Figure(
                "storm_memory_growth", "growth of memory after a quarter of the time", [growth(held)], GROWTH_GOAL, ""
            ),
            Figure("storm_left_behind", "requests left behind", [float(left)], 0, ""),
            Figure(
                "storm_server_errors", "answers that are a server's error", [float(len(storm.server_errors))], 0, ""
            ),
            Figure("storm_differ", replayed, [float(differ)], 0, ""),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
