"""`make bench-door`: the front door alone, in front of a core that generates faster than it can tell.

Whole processes on this machine: the scripted core gives every running request its next token, the front door makes
texts and events of them, and a third process reads the streams. Tokens that the door merges because it is behind count
too; the share of those that came in events of their own is shown beside the speed.

A first token is asked for in turns from the door, from a server that answers at once (`tests.bench.bare`: the way and
the client), and from another such core over its own channel (`tests.bench.core_alone`). What the door takes beyond the
other two together is its own share: in each turn, its median less theirs.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from appliance.bench.server import PATHS
from appliance.home import Home
from tests.bench.core_alone import CoreAlone
from tests.bench.load import Client
from tests.bench.table import Figure, conclude, describe_machine
from tests.running import temporary_home
from tests.supervisor.scripted import Door, core_command

RUNS = 5
STREAMS = 64
RATE = 40_000  # tokens a second that the core gives, if the machine lets it
TOKENS = 480
QUESTIONS = 200  # one after the other, of one token
PROMPT = [5, 6, 7]


class Waits(NamedTuple):
    """ms to the first token, of one turn."""

    door: float
    bare: float
    core: float


class Streamed(NamedTuple):
    tokens_per_s: float
    processor_us: float  # of the front door, for a token
    own_events: float  # the share of tokens that came in events of their own


def body(kind: str, tokens: int) -> bytes:
    asked: dict[str, object] = {"prompt": PROMPT}
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


def first_token_ms(client: Client, url: str) -> float:
    answers = client.put(url, PATHS["chat"], [body("chat", 1)] * QUESTIONS, 1)
    return statistics.median(answer.events[0] - answer.sent for answer in answers) * 1e3


def ask_in_turn(client: Client, door: str, bare: str, core: CoreAlone) -> Waits:
    return Waits(
        door=first_token_ms(client, door),
        bare=first_token_ms(client, bare),
        core=core.first_token_ms(PROMPT, QUESTIONS),
    )


@contextmanager
def bare() -> Iterator[str]:
    """The address of a server that answers at once."""
    command = [sys.executable, "-m", "tests.bench.bare"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()


def main() -> int:
    describe_machine()
    streamed: dict[str, list[Streamed]] = {"completions": [], "chat": []}
    waits: list[Waits] = []
    with temporary_home() as folder, Client(processes=1) as client, bare() as least:
        home = Home.at(Path(folder) / "home").create()
        token_s = STREAMS / RATE
        with (
            Door(home, token_s=token_s) as door,
            CoreAlone(home, core_command(home, token_s=token_s)) as core,
        ):
            door.wait("ready")
            ask_in_turn(client, door.url, least, core)
            for _ in range(RUNS):
                for kind, runs in streamed.items():
                    runs.append(stream(client, door, kind))
                waits.append(ask_in_turn(client, door.url, least, core))
    whole, bare_ms, core_ms = map(list, zip(*waits, strict=True))
    added = [each.door - each.bare for each in waits]
    own = [each.door - each.bare - each.core for each in waits]
    figures = [
        Figure("first_token_ms", "first token, with core and client", whole, 2.0, "ms"),
        Figure("first_token_bare_ms", "  of a server that answers at once", bare_ms, None, "ms"),
        Figure("first_token_core_ms", "  of the core alone, over its channel", core_ms, None, "ms"),
        Figure("first_token_added_ms", "  beyond a server that answers at once", added, None, "ms"),
        Figure("first_token_own_ms", "  beyond that and the core: the door's own", own, 1.0, "ms"),
    ]
    for kind, runs in streamed.items():
        speeds, processor, events = map(list, zip(*runs, strict=True))
        figures += [
            Figure(f"{kind}_tok_s", f"{kind}, {STREAMS} streams", speeds, 20_000, "/s", at_least=True),
            Figure(f"{kind}_cpu_us", "  the door's processor time a token", processor, None, "us"),
            Figure(f"{kind}_own_events", "  tokens with an event of their own", events, None, ""),
        ]
    return conclude(figures)


if __name__ == "__main__":
    sys.exit(main())
