"""`make bench-cpu`: tokens a second on this machine's CPU, over HTTP, beside vLLM or beside bare products.

A random Llama of 27 million parameters in bfloat16, 64 tokens in and 64 out, with one request at a time and with
eight. Where `INGOT_VLLM_VENV` names a virtual environment with vLLM for CPUs, its server takes the same load in turns
with ours, and the goal is its speed. Elsewhere the goal is a share of the time that torch takes for the products with
the model's weights alone, with as many threads as the engine has.

What counts is the median of the ratios of turns that follow each other closely, each side first in every other one.
That rides out a machine that is now slower, now faster. It does not ride out one that has more to do than processors:
there the side with more threads gets more of it, and the processor time a token, shown beside the speeds, says more.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psutil

from appliance.home import Home
from appliance.profile.active import ActiveProfile, write_active
from tests.bench.table import Figure, conclude
from tests.running import end, engine, environment, fetch, free_port, temporary_home, wait_for
from tests.tiny import write_checkpoint

NAME = "llama-27m"
SHAPE: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
STREAMS = (1, 8)
TOKENS_IN = TOKENS_OUT = 64
REQUESTS = {1: 4, 8: 16}  # in one turn
TURNS = 9
# Of the bare products' speed, which no engine reaches: the prompt is computed too, and attention, norms, drawing and
# the way through two processes take their part. One stream's token pays for reading every weight, which dwarfs that
# part; eight share the reading, and each pays its own part in full. 0.8 and 0.5 were measured on two busy processors;
# the goals leave a quarter of that to machines whose memory is faster and whose Python is not.
SHARE_GOAL = {1: 0.6, 8: 0.4}
VLLM_GOAL = 1.0
VLLM_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_TARGET_DEVICE": "cpu"}


class Turn(NamedTuple):
    tokens_per_s: float
    cpu_ms: float  # of all processors together, for each token


Load = Callable[[int], Turn]  # of so many streams


def main() -> int:
    load, processors = os.getloadavg()[0], len(os.sched_getaffinity(0))
    print(f"load average {load:.1f} on {processors} processors", flush=True)
    if load > processors / 2:
        print("The machine is busy: speeds then tell how many threads each side runs, more than how fast they are; "
              "compare the processor time a token.", flush=True)  # fmt: skip
    with temporary_home() as folder, contextlib.ExitStack() as servers:
        home = Home.at(folder).create()
        checkpoint = write_checkpoint(home.models / NAME, dtype="bfloat16", scale=0.02, **SHAPE)
        ours: Load = servers.enter_context(ingot(home))
        venv = os.environ.get("INGOT_VLLM_VENV")
        if venv:
            other: Load = servers.enter_context(vllm(Path(venv), checkpoint))
            against, goal = "vLLM", dict.fromkeys(STREAMS, VLLM_GOAL)
        else:
            other, against, goal = bare_products(), "bare products", SHARE_GOAL
        figures = []
        for streams in STREAMS:
            figures += compare(streams, ours, other, against, goal[streams])
    return conclude(figures)


def compare(streams: int, ours: Load, other: Load, against: str, goal: float) -> list[Figure]:
    ours(streams), other(streams)  # once to warm up
    pairs = []
    for turn in range(TURNS):
        if turn % 2:
            theirs, mine = other(streams), ours(streams)
        else:
            mine, theirs = ours(streams), other(streams)
        pairs.append((mine, theirs))
    ratios = [mine.tokens_per_s / theirs.tokens_per_s for mine, theirs in pairs]
    what = f"{streams} streams, our tokens a second as a share of those of {against}"
    name = f"cpu_{streams}_streams_of_{against.lower().replace(' ', '_')}"
    figures = [Figure(name, what, ratios, goal, unit="x", at_least=True)]
    for whose, turns in (("Ingot", [mine for mine, _ in pairs]), (against, [theirs for _, theirs in pairs])):
        key, what = f"cpu_{streams}_streams_{whose.lower().replace(' ', '_')}", f"{streams} streams, {whose}"
        speeds, costs = [turn.tokens_per_s for turn in turns], [turn.cpu_ms for turn in turns]
        figures.append(Figure(f"{key}_tokens_per_s", f"{what}, tokens a second", speeds, None, "/s"))
        figures.append(Figure(f"{key}_ms", f"{what}, processor time a token", costs, None, "ms"))
    return figures


@contextlib.contextmanager
def ingot(home: Home) -> Iterator[Load]:
    document = {"schema": 1, "name": NAME, "model": {"path": NAME}, "max-num-seqs": 16, "max-model-len": 2048}
    write_active(home, ActiveProfile(launch=None, revision="r1", document=document))
    with engine(home.root) as (process, url):

        def up() -> bool:
            _, state = fetch(f"{url}/appliance/state")
            if state and state["state"] == "failed":
                raise RuntimeError(f"Ingot did not start: {state['launch']['reason']}")
            return ready(url)

        wait_for("Ingot is ready", up, 120, every_s=0.2)
        yield partial(ask, url, process.pid)


@contextlib.contextmanager
def vllm(venv: Path, checkpoint: Path) -> Iterator[Load]:
    """Its server, stopped between its turns: it goes on asking for work while it has none, which takes a processor."""
    port = free_port()
    with tempfile.NamedTemporaryFile(prefix="vllm-", suffix=".log") as log:
        process = subprocess.Popen(
            [venv / "bin/vllm", "serve", checkpoint, "--served-model-name", NAME, "--max-model-len", "2048",
             "--host", "127.0.0.1", "--port", str(port)],
            env=environment(checkpoint) | VLLM_ENVIRONMENT,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        url = f"http://127.0.0.1:{port}"

        def up() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"vLLM ended while it started:\n{Path(log.name).read_text()[-2000:]}")
            return ready(url)

        try:
            wait_for("vLLM is ready", up, 600, every_s=0.5)
            os.killpg(process.pid, signal.SIGSTOP)

            def load(streams: int) -> Turn:
                os.killpg(process.pid, signal.SIGCONT)
                try:
                    return ask(url, process.pid, streams)
                finally:
                    os.killpg(process.pid, signal.SIGSTOP)

            yield load
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGCONT)
            end(process)


def ready(url: str) -> bool:
    return fetch(f"{url}/v1/completions", request(1, random.Random(0)))[0] == 200


def request(max_tokens: int, rng: random.Random) -> dict[str, Any]:
    """Nobody has asked this before: no cache of prefixes helps."""
    prompt = [rng.randrange(10, SHAPE["vocab_size"]) for _ in range(TOKENS_IN)]
    return {"model": NAME, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}


def ask(url: str, pid: int, streams: int) -> Turn:
    """Output tokens with `streams` requests at any time, each streamed."""
    rng = random.Random()
    bodies = [request(TOKENS_OUT, rng) for _ in range(REQUESTS[streams])]
    with ThreadPoolExecutor(streams) as pool:
        started, used = time.perf_counter(), cpu_s(pid)
        tokens = sum(pool.map(partial(_stream, url), bodies))
        return Turn(tokens / (time.perf_counter() - started), 1e3 * (cpu_s(pid) - used) / tokens)


def cpu_s(pid: int) -> float:
    """User and system time of a server so far, with the processes that it started: ours are in groups of their own."""
    server = psutil.Process(pid)
    times = [process.cpu_times() for process in (server, *server.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def _stream(url: str, body: dict[str, Any]) -> int:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
    try:
        content = json.dumps(body | {"stream": True, "stream_options": {"include_usage": True}})
        connection.request("POST", "/v1/completions", content, {"content-type": "application/json"})
        answer = connection.getresponse()
        *_, last = (line for line in answer if line.startswith(b"data: {"))
        tokens: int = json.loads(last[len(b"data: ") :])["usage"]["completion_tokens"]
        if tokens != TOKENS_OUT:
            raise RuntimeError(f"{url} answered {tokens} tokens, and {TOKENS_OUT} were asked for")
        return tokens
    finally:
        connection.close()


def bare_products() -> Load:
    """Tokens a second if there were nothing to do but to multiply by every weight, as torch does it."""
    import torch

    hidden, inner, heads = SHAPE["hidden_size"], SHAPE["intermediate_size"], SHAPE["num_attention_heads"]
    query_key_value = (heads + 2 * SHAPE["num_key_value_heads"]) * hidden // heads
    layer = [(query_key_value, hidden), (hidden, hidden), (2 * inner, hidden), (hidden, inner)]
    shapes = layer * SHAPE["num_hidden_layers"] + [(SHAPE["vocab_size"], hidden)]
    weights = [torch.randn(shape).bfloat16() for shape in shapes]
    torch.set_num_threads(max(len(os.sched_getaffinity(0)) - 1, 1))

    def run(streams: int) -> Turn:
        inputs = {size: torch.randn(streams, size).bfloat16() for size in (hidden, inner)}
        started, used, steps = time.perf_counter(), time.process_time(), 0
        with torch.inference_mode():
            while time.perf_counter() - started < 1.0:
                for weight in weights:
                    torch.nn.functional.linear(inputs[weight.shape[1]], weight)
                steps += 1
        tokens = streams * steps
        return Turn(tokens / (time.perf_counter() - started), 1e3 * (time.process_time() - used) / tokens)

    return run


if __name__ == "__main__":
    sys.exit(main())
