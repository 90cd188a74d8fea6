"""`make bench-cpu`: tokens a second on this machine's CPU, over HTTP, beside bare products.

A random Llama of 27 million parameters in bfloat16, 64 tokens in and 64 out, with one request at a time and with
eight. The goal is a share of the time that torch takes for the products with the model's weights alone, with as many
threads as the engine has. `make bench-peer` compares with vLLM.

What counts is the median of the ratios of turns that follow each other closely, each side first in every other one.
That rides out a machine that is now slower, now faster. It does not ride out one that has more to do than processors:
there the side with more threads gets more of it, and the processor time a token, shown beside the speeds, says more.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from appliance.home import Home
from tests.bench import shapes
from tests.bench.load import Client, Load
from tests.bench.servers import Server, ingot
from tests.bench.shapes import SHAPES
from tests.bench.table import Figure, conclude, describe_machine
from tests.running import temporary_home

NAME = "llama-27m"
STREAMS = (1, 8)
REQUESTS = {1: 4, 8: 16}  # in one turn
TURNS = 9
# Of the bare products' speed, which no engine reaches: the prompt is computed too, and attention, norms, drawing and
# the way through two processes take their part. One stream's token pays for reading every weight, which dwarfs that
# part; eight share the reading, and each pays its own part in full. 0.8 and 0.5 were measured on two busy processors;
# the goals leave a quarter of that to machines whose memory is faster and whose Python is not.
SHARE_GOAL = {1: 0.6, 8: 0.4}


class Turn(NamedTuple):
    tokens_per_s: float
    cpu_ms: float  # of all processors together, for each token


Side = Callable[[int], Turn]  # of so many streams


def main() -> int:
    describe_machine()
    with temporary_home() as folder, Client() as client:
        home = Home.at(folder).create()
        shapes.write(home.models / NAME, SHAPES[NAME])
        server = ingot(home.root, NAME, {"device": "cpu", "max-num-seqs": 16, "max-model-len": 2048})
        try:
            server.start()
            ours, products = served(server, client), bare_products()
            figures = [figure for streams in STREAMS for figure in compare(streams, ours, products)]
        finally:
            server.end()
    return conclude(figures)


def compare(streams: int, ours: Side, products: Side) -> list[Figure]:
    ours(streams), products(streams)  # once to warm up
    pairs = []
    for turn in range(TURNS):
        if turn % 2:
            theirs, mine = products(streams), ours(streams)
        else:
            mine, theirs = ours(streams), products(streams)
        pairs.append((mine, theirs))
    ratios = [mine.tokens_per_s / theirs.tokens_per_s for mine, theirs in pairs]
    what = f"{streams} streams, our tokens a second as a share of those of bare products"
    name = f"cpu_{streams}_streams_of_bare_products"
    figures = [Figure(name, what, ratios, SHARE_GOAL[streams], unit="x", at_least=True)]
    for whose, turns in (("Ingot", [mine for mine, _ in pairs]), ("bare products", [theirs for _, theirs in pairs])):
        key, what = f"cpu_{streams}_streams_{whose.lower().replace(' ', '_')}", f"{streams} streams, {whose}"
        speeds, costs = [turn.tokens_per_s for turn in turns], [turn.cpu_ms for turn in turns]
        figures.append(Figure(f"{key}_tokens_per_s", f"{what}, tokens a second", speeds, None, "/s"))
        figures.append(Figure(f"{key}_ms", f"{what}, processor time a token", costs, None, "ms"))
    return figures


def served(server: Server, client: Client) -> Side:
    """Over HTTP, with prompts that nobody has asked before."""
    seeds = itertools.count()

    def run(streams: int) -> Turn:
        load, used = Load(64, 64, streams, REQUESTS[streams]), server.processor_s()
        measured = server.run(client, load, next(seeds))
        tokens = load.requests * load.tokens_out
        return Turn(measured.tokens_per_s, 1e3 * (server.processor_s() - used) / tokens)

    return run


def bare_products() -> Side:
    """Tokens a second if there were nothing to do but to multiply by every weight, as torch does it."""
    import torch

    config = SHAPES[NAME].full_config
    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    query_key_value = (heads + 2 * config["num_key_value_heads"]) * hidden // heads
    layer = [(query_key_value, hidden), (hidden, hidden), (2 * inner, hidden), (hidden, inner)]
    sizes = layer * config["num_hidden_layers"] + [(config["vocab_size"], hidden)]
    weights = [torch.randn(size).bfloat16() for size in sizes]
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
