"""`make bench-cpu`: tokens a second on this machine's CPU, over HTTP, beside vLLM or beside bare products.

A random Llama of 27 million parameters in bfloat16, 64 tokens in and 64 out, with one request at a time and with
eight. Where `INGOT_VLLM_VENV` names a virtual environment with vLLM for CPUs, its server takes the same load in turns
with ours, and the goal is its speed. Elsewhere the goal is a share of the time that torch takes for the products with
the model's weights alone, with as many threads as the engine has.
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
from typing import Any
from urllib.parse import urlsplit

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
TURNS = 5
# Of the bare products' speed; the rest is attention, norms, drawing, and the way through two processes.
SHARE_GOAL = {1: 0.6, 8: 0.4}
VLLM_GOAL = 1.0
VLLM_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_TARGET_DEVICE": "cpu"}

Load = Callable[[int], float]  # streams -> tokens a second


def main() -> int:
    with temporary_home() as folder, contextlib.ExitStack() as servers:
        home = Home.at(folder).create()
        checkpoint = write_checkpoint(home.models / NAME, dtype="bfloat16", scale=0.02, **SHAPE)
        ours: Load = partial(tokens_per_s, servers.enter_context(ingot(home)))
        venv = os.environ.get("INGOT_VLLM_VENV")
        if venv:
            other: Load = servers.enter_context(vllm(Path(venv), checkpoint))
            against, goal = "vLLM", dict.fromkeys(STREAMS, VLLM_GOAL)
        else:
            other, against, goal = bare_products(), "bare products", SHARE_GOAL
        figures = []
        for streams in STREAMS:
            ours(streams), other(streams)  # once to warm up
            pairs = [(ours(streams), other(streams)) for _ in range(TURNS)]
            mine = [pair[0] for pair in pairs]
            ratios = [pair[0] / pair[1] for pair in pairs]
            print(f"{streams} streams: ours {median(mine):.0f} tokens/s, "
                  f"{against} {median([pair[1] for pair in pairs]):.0f} tokens/s", flush=True)  # fmt: skip
            name = f"cpu_{streams}_streams_of_{against.lower().replace(' ', '_')}"
            what = f"{streams} streams, ours as a share of {against}"
            figures.append(Figure(name, what, ratios, goal[streams], unit="x", at_least=True))
    return conclude(figures)


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


@contextlib.contextmanager
def ingot(home: Home) -> Iterator[str]:
    document = {"schema": 1, "name": NAME, "model": {"path": NAME}, "max-num-seqs": 16, "max-model-len": 2048}
    write_active(home, ActiveProfile(launch=None, revision="r1", document=document))
    with engine(home.root) as (_process, url):

        def up() -> bool:
            _, state = fetch(f"{url}/appliance/state")
            if state and state["state"] == "failed":
                raise RuntimeError(f"Ingot did not start: {state['launch']['reason']}")
            return ready(url)

        wait_for("Ingot is ready", up, 120, every_s=0.2)
        yield url


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

            def load(streams: int) -> float:
                os.killpg(process.pid, signal.SIGCONT)
                try:
                    return tokens_per_s(url, streams)
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


def tokens_per_s(url: str, streams: int) -> float:
    """Output tokens a second with `streams` requests at any time, each streamed."""
    rng = random.Random()
    bodies = [request(TOKENS_OUT, rng) for _ in range(REQUESTS[streams])]
    with ThreadPoolExecutor(streams) as pool:
        started = time.perf_counter()
        tokens = sum(pool.map(partial(_stream, url), bodies))
    return tokens / (time.perf_counter() - started)


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

    def run(streams: int) -> float:
        inputs = {size: torch.randn(streams, size).bfloat16() for size in (hidden, inner)}
        started, steps = time.perf_counter(), 0
        with torch.inference_mode():
            while time.perf_counter() - started < 1.0:
                for weight in weights:
                    torch.nn.functional.linear(inputs[weight.shape[1]], weight)
                steps += 1
        return streams * steps / (time.perf_counter() - started)

    return run


if __name__ == "__main__":
    sys.exit(main())
