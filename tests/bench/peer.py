"""`make bench-peer`: Ingot beside vLLM on this machine, both serving one model of random weights made on the spot.
With `--tensor-parallel-size` several GPUs share it, beside vLLM on as many, or beside Ingot itself on one of them.

Both are started and timed to the first token; then they take the same loads in turns, each side first in every other
round. What counts is the median of the rounds' ratios: that rides out a machine that is now slower, now faster.
INGOT_VLLM names vLLM's command. `tests/gpu/peer.sh` runs the same on a GPU, with the floor of a decode step beside the
figures: the bytes that it must read, over the measured copy bandwidth.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from appliance.home import Home
from tests.bench import shapes
from tests.bench.comparison import (
    GOALS,
    ONE_GPU,
    VLLM,
    Rounds,
    Turn,
    compared,
    goals_of,
    load_figures,
    start_figures,
    verdict,
)
from tests.bench.load import Client, Load
from tests.bench.servers import CPU_CACHE_GIB, Server, ingot, vllm
from tests.bench.shapes import SHAPES, Shape
from tests.bench.table import describe_machine
from tests.running import exit_on_term, temporary_home

ON_CPU = "llama-27m"
# A prefill costs more than a token, so with few streams few requests tell enough.
CPU_LOADS = [Load(tokens_in, 64, streams, n) for tokens_in in (64, 512) for streams, n in ((1, 3), (8, 16), (32, 64))]
GPU_LOADS = [Load(128, 512, streams, n) for streams, n in ((1, 2), (8, 8), (64, 64), (256, 256))]
GPU_LOADS += [Load(8192, 256, streams, 2 * streams) for streams in (1, 2, 8)]
WARM_UP_TOKENS = 8
OTHERS = {"vllm": VLLM, "one-gpu": ONE_GPU}

Side = Callable[[Load, object], Turn]


def main() -> int:
    options = parse()
    exit_on_term()
    began = time.monotonic()
    describe_machine()
    shape = SHAPES[options.shape]
    if options.layers:
        shape = shape.with_layers(options.layers)
    bandwidth = copy_bandwidth() if options.device != "cpu" else None
    with temporary_home() as folder, Client() as client:
        home = Home.at(folder).create()
        shapes.write(home.models / options.shape, shape)
        layers = shape.full_config["num_hidden_layers"]
        print(f"{options.shape}, {layers} layers, made after {time.monotonic() - began:.0f} s", flush=True)
        servers = pair_of(home, options)
        try:
            starts = time_starts(servers, options.starts)
            ours, theirs = (side(server, client) for server in servers)
            rounds = alternate(ours, theirs, options.loads, options.rounds, began + options.seconds)
        finally:
            for server in servers:
                server.end()
    ranks, other = options.tensor_parallel_size, OTHERS[options.beside]
    floors = {load: floor(shape, load, bandwidth * ranks) for load in rounds} if bandwidth else {}
    print(compared(rounds, floors, other))
    figures = [*start_figures(starts, other), *load_figures(rounds, floors, other)]
    return verdict(figures, goals_of(options.shape, ranks, other))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.peer", description="Ingot beside vLLM, or beside one GPU."
    )
    parser.add_argument("--shape", default=ON_CPU, choices=GOALS)
    parser.add_argument("--layers", type=int, help="fewer than the shape has, where memory is short")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--memory", type=float, default=0.45, help="the share of the GPU's memory for each server")
    parser.add_argument("--tensor-parallel-size", type=int, default=1, metavar="N", help="GPUs that share the model")
    parser.add_argument("--beside", default="vllm", choices=OTHERS, help="one-gpu: Ingot on one of them")
    parser.add_argument("--starts", type=int, default=3, help="of each server")
    parser.add_argument("--rounds", type=int, default=7, help="at most")
    parser.add_argument("--seconds", type=float, default=1200, help="no round begins that would pass this")
    parser.add_argument("--loads", type=load_of, nargs="+", metavar="IN/OUT/STREAMS/REQUESTS")
    options = parser.parse_args()
    if options.beside == "one-gpu" and options.tensor_parallel_size == 1:
        parser.error("--beside one-gpu compares several GPUs with one: name their number in --tensor-parallel-size")
    options.vllm = os.environ.get("INGOT_VLLM")
    if options.beside == "vllm" and not options.vllm:
        parser.error("INGOT_VLLM is not set: name vLLM's command in it (python tests/vllm/install.py installs one)")
    options.loads = options.loads or (CPU_LOADS if options.shape == ON_CPU else GPU_LOADS)
    return options


def load_of(text: str) -> Load:
    tokens_in, tokens_out, streams, requests = map(int, text.split("/"))
    return Load(tokens_in, tokens_out, streams, requests)


def pair_of(home: Home, options: argparse.Namespace) -> tuple[Server, Server]:
    longest = max(load.tokens_in + load.tokens_out for load in options.loads)
    context = -(-longest // 2048) * 2048
    settings: dict[str, Any] = {"max-model-len": context}
    arguments = ["--max-model-len", str(context)]
    if options.device == "cpu":
        settings |= {"device": "cpu", "kv-cache-memory-bytes": f"{CPU_CACHE_GIB} GiB"}
    else:
        settings |= {"gpu-memory-utilization": options.memory}
        arguments += ["--gpu-memory-utilization", str(options.memory)]
    cast, ranks = os.environ.get("INGOT_GPU_CAST"), options.tensor_parallel_size
    shared = settings | ({"tensor-parallel-size": ranks} if ranks > 1 else {})
    ours = ingot(home.root, options.shape, shared, cast)
    if options.beside == "one-gpu":
        other = Home.at(home.root.parent / "one-gpu").create()
        return ours, ingot(other.root, options.shape, settings, cast, name=ONE_GPU.name, models=home.models)
    arguments += ["--tensor-parallel-size", str(ranks)]
    return ours, vllm(options.vllm, home.root, options.shape, *arguments, device=options.device)


def time_starts(servers: Sequence[Server], count: int) -> list[tuple[float, float]]:
    """Seconds to the first token of both, one after the other and each alone; after the last both go on running."""
    starts = []
    for number in range(count):
        taken = {}
        for server in servers if number % 2 == 0 else reversed(servers):
            taken[server.name] = server.start()
            print(f"{server.name}: first token {taken[server.name]:.2f} s after its start", flush=True)
            if number < count - 1:
                server.end()
        starts.append((taken[servers[0].name], taken[servers[1].name]))
    return starts


def side(server: Server, client: Client) -> Side:
    def run(load: Load, seed: object) -> Turn:
        before = server.processor_s()
        measured = server.run(client, load, seed)
        return Turn(measured, (server.processor_s() - before) / (load.requests * load.tokens_out))

    return run


def alternate(ours: Side, theirs: Side, loads: Sequence[Load], rounds: int, deadline: float) -> Rounds:
    """At least one round of all loads, after a short one of each to warm up."""
    for load in loads:
        for warmed in (ours, theirs):
            warmed(load._replace(tokens_out=WARM_UP_TOKENS, requests=load.streams), "warm-up")
    found: Rounds = {load: [] for load in loads}
    longest = 0.0
    for number in range(rounds):
        began = time.monotonic()
        if number and began + longest > deadline:
            break
        for load in loads:
            if number % 2 == 0:
                mine, other = ours(load, number), theirs(load, number)
            else:
                other, mine = theirs(load, number), ours(load, number)
            found[load].append((mine, other))
        longest = max(longest, time.monotonic() - began)
        print(f"round {number + 1}: {time.monotonic() - began:.0f} s", flush=True)
    return found


def copy_bandwidth() -> float:
    """Bytes a second, measured in a process of its own, so that this one holds nothing of the GPU."""
    command = [sys.executable, "-m", "tests.gpu.bench.ceilings"]
    bandwidth = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(f"copy {bandwidth / 1e12:.2f} TB/s", flush=True)
    return bandwidth


def floor(shape: Shape, load: Load, bandwidth: float) -> float:
    """Seconds of a token, if a step took as long as reading what it must, with the answers half written."""
    return shapes.read_by_step(shape, load.streams, load.tokens_in + load.tokens_out // 2) / bandwidth


if __name__ == "__main__":
    sys.exit(main())
