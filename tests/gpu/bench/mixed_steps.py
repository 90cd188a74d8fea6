"""What CUDA graphs of steps with prompts change: times to a first token, alone and beside decodes, and the gaps between
tokens while short prompts arrive, of one engine with them and one without, in turns.

usage: python -m tests.gpu.bench.mixed_steps [--shape tinyllama-1.1b] [--layers 8] [--streams 64 256] ...
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from appliance.core_protocol import SamplingParams, Submit
from appliance.engine.engine import Engine
from tests.bench.shapes import SHAPES, write
from tests.parity.conftest import make_engine
from tests.running import temporary_home

VOCABULARY = 30_000
LENGTHS = 32, 128, 256, 512, 768, 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="tinyllama-1.1b")
    parser.add_argument("--layers", type=int, help="fewer than the shape has")
    parser.add_argument("--streams", type=int, nargs="+", default=[64])
    parser.add_argument("--requests", type=int, default=3, help="of each stream")
    parser.add_argument("--beside", type=int, nargs="+", default=[0, 60], help="decodes beside a prompt")
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    if options.layers:
        shape = shape.with_layers(options.layers)
    with temporary_home() as home:
        home.mkdir()
        folder = write(home / "model", shape)
        engines = {name: engine_of(folder, name == "graphs", max(*options.streams, 64)) for name in ("eager", "graphs")}
    for name, engine in engines.items():
        capture(name, engine)
    rng = random.Random(0)
    for engine in engines.values():
        load(engine, rng, 8, 16, 300, 8)  # every kernel is loaded
    for count in options.beside:
        print(f"\nms of a prompt beside {count} decodes: to its first token, and the longest gap of the others")
        print(f"{'tokens':>8}" + "".join(f"{name:>18}" for name in engines))
        for length in LENGTHS:
            cells = [beside(engine, rng, count, length) for engine in engines.values()]
            print(f"{length:>8}" + "".join(f"{first:>10.2f} {gap:>7.2f}" for first, gap in cells), flush=True)
    for streams in options.streams:
        print(
            f"\n128/512 x {streams}: tokens/s, median first token, gaps of all steps (median, p99), of those of decodes"
        )
        for name, engine in [*engines.items()] * 2:
            before = dict(engine.steps)
            print(f"{name:>8} {load(engine, rng, streams, streams * options.requests, 128, 512)}")
            print(" " * 8, {kind: count - before.get(kind, 0) for kind, count in engine.steps.items()}, flush=True)


def engine_of(folder: Path, graphs: bool, streams: int) -> Engine:
    return make_engine(
        folder, device="cuda:0", dtype="bfloat16", kv_cache_dtype="bfloat16", max_model_len=4096,
        max_num_seqs=streams, max_num_batched_tokens=8192, num_blocks=streams * 44 + 300, enforce_eager=False,
        **({} if graphs else {"prefill_graphs": False}),
    )  # fmt: skip


def capture(name: str, engine: Engine) -> None:
    free, started, count = torch.cuda.mem_get_info()[0], time.perf_counter(), 0
    while engine.capture_next():
        count += 1
    torch.cuda.synchronize()
    seconds, taken = time.perf_counter() - started, free - torch.cuda.mem_get_info()[0]
    print(f"{name}: {count} more graphs, {seconds / count * 1e3:.0f} ms and {taken / count / 2**20:.2f} MiB each")


def submit(engine: Engine, name: str, rng: random.Random, tokens_in: int, tokens_out: int) -> None:
    prompt = rng.choices(range(300, VOCABULARY), k=tokens_in)
    sampling = SamplingParams(temperature=0.0, max_tokens=tokens_out, ignore_eos=True)
    assert engine.submit(Submit(request_id=name, prompt_token_ids=prompt, sampling=sampling)) is None


def beside(engine: Engine, rng: random.Random, count: int, length: int) -> tuple[float, float]:
    """Medians of ten prompts, in ms."""
    firsts, gaps = [], []
    for number in range(count):
        submit(engine, f"other {number}", rng, 64, 600)
    for _ in range(20 if count else 0):
        engine.step()
    for number in range(10):
        last = sent = time.perf_counter()
        gap, waiting = 0.0, True
        submit(engine, f"prompt {number}", rng, length, 1)
        while waiting:
            names = {output.request_id for output in engine.step()}
            now = time.perf_counter()
            waiting = f"prompt {number}" not in names
            if any(name.startswith("other") for name in names):
                gap, last = max(gap, now - last), now
        firsts.append(time.perf_counter() - sent)
        gaps.append(gap)
        for _ in range(3 if count else 0):
            engine.step()
    for number in range(count):
        engine.abort(f"other {number}")
    while not engine.idle:
        engine.step()
    return 1e3 * statistics.median(firsts), 1e3 * statistics.median(gaps)


def load(engine: Engine, rng: random.Random, streams: int, requests: int, tokens_in: int, tokens_out: int) -> str:
    """`streams` at a time, each as its predecessor ends; the first of different lengths, so that they do not end
    together."""
    began = {}
    firsts: list[float] = []
    last: dict[str, float] = {}
    gaps: list[float] = []
    quiet: list[float] = []
    sent = ended = tokens = 0
    started = time.perf_counter()
    with collections() as collected:
        while ended < requests:
            while sent < requests and sent - ended < streams:
                name = str(sent)
                submit(
                    engine, name, rng, tokens_in, tokens_out * (sent + 1) // streams if sent < streams else tokens_out
                )
                began[name], sent = time.perf_counter(), sent + 1
            outputs = engine.step()
            now = time.perf_counter()
            for output in outputs:
                name = output.request_id
                tokens += len(output.token_ids)
                ended += output.finish_reason is not None
                if name in last:
                    gaps.append(now - last[name])
                    if not began:
                        quiet.append(now - last[name])
                elif name in began:
                    firsts.append(now - began.pop(name))
                last[name] = now
    seconds = time.perf_counter() - started
    found = ", ".join(f"{1e3 * median(each):.2f} {1e3 * p99(each):.2f}" for each in (gaps, quiet))
    worst = ", ".join(f"{1e3 * each:.1f}" for each in sorted(quiet)[-3:])
    longest = 1e3 * max(collected, default=0.0)
    return (
        f"{tokens / seconds:>9,.0f} {1e3 * median(firsts):>8.2f}   {found}; longest {worst}; {len(collected)} full "
        f"collections of up to {longest:.1f} ms"
    )


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


def p99(values: Sequence[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))] if values else 0.0


@contextmanager
def collections() -> Iterator[list[float]]:
    """How long each collection of Python's oldest objects takes within the block."""
    found: list[float] = []
    started = 0.0

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal started
        if info["generation"] < 2:
            return
        if phase == "start":
            started = time.perf_counter()
        else:
            found.append(time.perf_counter() - started)

    gc.callbacks.append(note)
    try:
        yield found
    finally:
        gc.callbacks.remove(note)


if __name__ == "__main__":
    main()
