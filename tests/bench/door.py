"""`make bench-door`: the front door alone, in front of a core that generates faster than it can tell.

Whole processes on this machine: the scripted core gives every running request its next token, the front door makes
texts and events of them, and a third process reads the streams. Tokens that the door merges because it is behind count
too; the share of those that came in events of their own is shown beside the speed.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

import psutil

from appliance.bench.answers import Answer
from appliance.bench.server import PATHS
from appliance.home import Home
from tests.bench.load import Client
from tests.bench.table import Figure, conclude, describe_machine
from tests.running import temporary_home
from tests.supervisor.scripted import Door, make_profile

RUNS = 5
STREAMS = 64
RATE = 40_000  # tokens a second that the core gives, if the machine lets it
TOKENS = 480
QUESTIONS = 200  # one after the other, of one token


class Streamed(NamedTuple):
    tokens_per_s: float
    processor_us: float  # of the front door, for a token
    own_events: float  # the share of tokens that came in events of their own


def body(kind: str, tokens: int) -> bytes:
    asked: dict[str, object] = {"prompt": [5, 6, 7]}
    if kind == "chat":
        asked = {"messages": [{"role": "user", "content": "fox"}]}
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    return json.dumps({"model": "tiny", "max_tokens": tokens, "temperature": 0, **stream, **asked}).encode()


def stream(client: Client, door: Door, kind: str) -> Streamed:
    process = psutil.Process(door.process.pid)
    before = process.cpu_times()
    answers = client.put(door.url, PATHS[kind], [body(kind, TOKENS)] * STREAMS, STREAMS)
    after = process.cpu_times()
    seconds = max(answer.events[-1] for answer in answers) - min(answer.sent for answer in answers)
    tokens = sum(answer.tokens for answer in answers)
    used = after.user - before.user + after.system - before.system
    return Streamed(tokens / seconds, used / tokens * 1e6, sum(len(answer.events) for answer in answers) / tokens)


def first_tokens(client: Client, door: Door) -> list[Answer]:
    return client.put(door.url, PATHS["chat"], [body("chat", 1)] * QUESTIONS, 1)


def main() -> int:
    describe_machine()
    streamed: dict[str, list[Streamed]] = {"completions": [], "chat": []}
    waits: list[float] = []
    with temporary_home() as folder, Client(processes=1) as client:
        home = Home.at(Path(folder) / "home").create()
        with Door(home, profile=make_profile(home, **{"max-num-seqs": STREAMS}), token_s=STREAMS / RATE) as door:
            door.wait("ready")
            first_tokens(client, door)
            for _ in range(RUNS):
                for kind, runs in streamed.items():
                    runs.append(stream(client, door, kind))
                waits.append(statistics.median(answer.events[0] - answer.sent for answer in first_tokens(client, door)))
    figures = [Figure("first_token_ms", "first token, with core and client", [wait * 1e3 for wait in waits], 2.0, "ms")]
    for kind, runs in streamed.items():
        speeds, processor, own = map(list, zip(*runs, strict=True))
        figures += [
            Figure(f"{kind}_tok_s", f"{kind}, {STREAMS} streams", speeds, 20_000, "/s", at_least=True),
            Figure(f"{kind}_cpu_us", "  the door's processor time a token", processor, None, "us"),
            Figure(f"{kind}_own_events", "  tokens with an event of their own", own, None, ""),
        ]
    return conclude(figures)


if __name__ == "__main__":
    sys.exit(main())
