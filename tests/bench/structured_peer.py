"""`tests/gpu/structured.sh`: what structured output costs on a GPU, of Ingot and of vLLM with the same schemas.

Both serve a model of random weights. Each takes turns of as many tokens with a schema as without, which follow each
other closely; the schemas are those of `tests.bench.structured`, but for the few that one of the two refuses.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

import httpx

from appliance.home import Home
from tests.bench import shapes
from tests.bench.load import Client
from tests.bench.schemas import SCHEMAS
from tests.bench.servers import Server, ingot, vllm
from tests.bench.shapes import SHAPES
from tests.bench.structured import TOKENS, Turns, body, endless
from tests.bench.table import Figure, conclude, describe_machine
from tests.running import exit_on_term, temporary_home, wait_for

COST_GOAL = 0.95  # of the speed of free answers
CONTEXT = 2048
LEAST = 25  # schemas
AT_ONCE = 16
COMPLETIONS = "/v1/completions"
Speeds = dict[bool, list[float]]  # with a schema, and without


def main() -> int:
    options = parse()
    exit_on_term()
    deadline = time.monotonic() + options.seconds
    describe_machine()
    with temporary_home() as folder, Client() as client:
        home = Home.at(folder).create()
        shapes.write(home.models / options.shape, SHAPES[options.shape])
        servers = pair_of(home, options)
        try:
            ours, theirs = servers
            print(f"{theirs.name}: first token {theirs.start():.1f} s after its start", flush=True)
            if cast := os.environ.get("INGOT_GPU_CAST"):  # which may be in the making
                wait_for("the cast", Path(cast).is_dir, options.seconds)
            print(f"{ours.name}: first token {ours.start():.1f} s after its start", flush=True)
            schemas = answered_by_all(servers)
            print(f"{len(schemas)} of {len(SCHEMAS)} schemas are answered by both", flush=True)
            if len(schemas) < LEAST:
                raise RuntimeError("too few schemas are left to compare the two with")
            found = alternate(servers, client, schemas, options, deadline)
        finally:
            for server in servers:
                server.end()
    return conclude([figure for server in servers for figure in figures(server, found[server.name], options.streams)])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.structured_peer", description="Ingot beside vLLM.")
    parser.add_argument("--shape", default="qwen3-8b", choices=SHAPES)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--memory", type=float, default=0.45, help="the share of the GPU's memory for each server")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9, help="at most")
    parser.add_argument("--seconds", type=float, default=200, help="no round begins that would pass this")
    options = parser.parse_args()
    options.vllm = os.environ.get("INGOT_VLLM")
    if not options.vllm:
        parser.error("INGOT_VLLM is not set: name vLLM's command in it (python tests/vllm/install.py installs one)")
    return options


def pair_of(home: Home, options: argparse.Namespace) -> tuple[Server, Server]:
    settings: dict[str, Any] = {"max-model-len": CONTEXT, "max-num-seqs": max(options.streams, 8)}
    arguments = ["--max-model-len", str(CONTEXT)]
    if options.device == "cpu":
        settings |= {"device": "cpu", "kv-cache-memory-bytes": "2 GiB"}
    else:
        settings |= {"gpu-memory-utilization": options.memory}
        arguments += ["--gpu-memory-utilization", str(options.memory)]
    ours = ingot(home.root, options.shape, settings, os.environ.get("INGOT_GPU_CAST"))
    return ours, vllm(options.vllm, home.root, options.shape, *arguments, device=options.device)


def answered_by_all(servers: Sequence[Server]) -> list[dict[str, Any]]:
    """Each is compiled by this, too."""
    accepted = list(SCHEMAS)
    for server in servers:
        with server.awake(), httpx.Client(timeout=120) as http, ThreadPoolExecutor(AT_ONCE) as pool:
            found = pool.map(answers, repeat(http), repeat(server), accepted)
            accepted = [schema for schema, well in zip(accepted, found, strict=True) if well]
    return accepted


def answers(http: httpx.Client, server: Server, schema: dict[str, Any]) -> bool:
    content = body(server.model, endless(schema), seed=0)
    answer = http.post(server.url + COMPLETIONS, content=content, headers={"content-type": "application/json"})
    if answer.status_code != 200 or f'"completion_tokens":{TOKENS}' not in answer.text:
        print(f"{server.name} refuses {str(schema)[:100]}: {answer.text[:200]}", flush=True)
        return False
    return True


def alternate(
    servers: Sequence[Server],
    client: Client,
    schemas: Sequence[dict[str, Any]],
    options: argparse.Namespace,
    deadline: float,
) -> dict[str, Speeds]:
    """At least one round, after one to warm up."""
    turns = {server.name: Turns(server, client, schemas, options.streams, options.streams) for server in servers}
    found: dict[str, Speeds] = {server.name: {True: [], False: []} for server in servers}
    longest = 0.0
    for number in range(-1, options.rounds):
        began = time.monotonic()
        if number > 0 and began + longest > deadline:
            break
        for server in servers if number % 2 else reversed(servers):
            with server.awake():
                for structured in (True, False) if number % 2 else (False, True):
                    speed, _ = turns[server.name].take(structured=structured)
                    if number >= 0:
                        found[server.name][structured].append(speed)
        longest = max(longest, time.monotonic() - began)
    return found


def figures(server: Server, speeds: Speeds, streams: int) -> list[Figure]:
    ours, name = server.name == "Ingot", server.name.lower()
    shares = [bound / free for bound, free in zip(speeds[True], speeds[False], strict=True)]
    what = f"{server.name}, {streams} streams: tokens a second with a schema as a share of those without"
    goal = COST_GOAL if ours else None
    return [
        Figure(f"{name}_structured_share_of_free", what, shares, goal, "x", at_least=True),
        Figure(f"{name}_structured_tokens_per_s", "  with a schema", speeds[True], None, "/s"),
        Figure(f"{name}_free_tokens_per_s", "  without", speeds[False], None, "/s"),
    ]


if __name__ == "__main__":
    sys.exit(main())
