"""`python -m tests.gpu.bench.decode_step [SHAPE[:LAYERS] ...] [--streams 1 64]`: where the time of a decode step goes.

A model of a published shape with random weights computes one token for each of some sequences in a CUDA graph. What
each op costs is what the step takes less without its kernels: unlike the sum of what a profiler shows for each, this
leaves out what other kernels hide.

`--kernels` shows the profiler's view instead: the share of a step in which the GPU computes, and the time by class of
kernels beside what their operations or bytes take at the measured ceilings.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from appliance.checkpoint.config import read_config
from appliance.checkpoint.selection import selection_context
from appliance.engine.cache import Caches
from appliance.models.base import BuildContext, Model
from appliance.models.batch import ForwardBatch
from appliance.models.registry import build
from kernels.binding import Kernels, bind
from kernels.catalogue import OPS
from kernels.libraries import installed
from kernels.paged_attention.metadata import AttentionMetadata
from kernels.sampling.batch import SamplingBatch
from kernels.selection import chosen_names, explain
from tests.bench.shapes import SHAPES, Shape, read_by_step
from tests.gpu.bench.ceilings import Ceilings, copy_bandwidth, measure

DEVICE, DTYPE = torch.device("cuda"), torch.bfloat16
CONTEXT, RUNG, BLOCK = 384, 1024, 16  # tokens of each sequence, of the longest that the graph is for, and of a block
LAYERS = {"tinyllama-1.1b": 22, "qwen3-8b": 12, "qwen3-30b-a3b": 6, "deepseek-v3": 3}
# Kernels by what their names contain; the first that fits.
CLASSES = {
    "products": ("few_tokens", "many_tokens", "gemm", "nvjet", "xmma", "cutlass", "splitKreduce", "cublas"),
    "attention": ("decode_kernel", "merge_kernel"),
    "norms": ("rms_norm",),
    "rotation": ("rotary_cache",),
    "activation": ("gated_activation",),
    "sampling": ("best_kernel", "level_kernel", "sample_kernel"),
}
REPLAYS = 8


class Switched:
    """The chosen backends, of which one may be `without`: it launches nothing then, and gives unwritten memory of the
    same shapes."""

    def __init__(self, kernels: Kernels) -> None:
        self.without = ""  # the name of an op; of products with the rows of their weights behind it
        self.calls: dict[str, int] = {}
        self._given: dict[tuple[Any, ...], Any] = {}
        ops = {field.name for field in fields(Kernels)} - {"prepare_linear", "places"}
        wrapped: dict[str, Any] = {op: self._wrap(op, getattr(kernels, op)) for op in ops}
        self.kernels = replace(kernels, **wrapped)

    def _wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def switched(*arguments: Any, **named: Any) -> Any:
            called = f"{name} {len(arguments[1])}" if name.endswith("linear") else name
            self.calls[called] = self.calls.get(called, 0) + 1
            shapes = (tuple(argument.shape) for argument in arguments if isinstance(argument, Tensor))
            key = name, *shapes, *(argument for argument in arguments if isinstance(argument, str)), *named
            if called == self.without and key in self._given:
                return self._given[key]
            result = call(*arguments, **named)
            self._given.setdefault(key, result)
            return result

        return switched


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=[*LAYERS], help="of tests/bench/shapes.py")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--whole", action="store_true", help="the step alone, not what each op costs")
    parser.add_argument("--kernels", action="store_true", help="time by class of kernels, as profiled, and ceilings")
    options = parser.parse_args()
    if options.kernels:
        report_kernels(options.shapes, options.streams)
        return
    copy = copy_bandwidth(DEVICE)
    print(f"{torch.cuda.get_device_name()}, copy {copy / 1e12:.2f} TB/s")
    for named in options.shapes:
        name, _, layers = named.partition(":")
        report(name, int(layers or LAYERS[name]), options.streams, copy, not options.whole)
        torch.cuda.empty_cache()


def report(name: str, layers: int, streams: Sequence[int], copy: float, each: bool) -> None:
    shape = SHAPES[name].with_layers(layers)
    with torch.inference_mode():
        model, switched, caches = make(shape.full_config, max(streams))
        for count in streams:
            batch = decodes(count)

            def step(batch: ForwardBatch = batch) -> Tensor:
                return model.compute_logits(model.forward(batch, caches.layers))

            step()
            switched.calls.clear()
            step()
            calls = dict(switched.calls) if each else {}
            whole = seconds(step)
            floor = read_by_step(shape, count, CONTEXT) / copy
            found = {}
            for op in calls:
                switched.without = op
                found[op] = whole - seconds(step)
                switched.without = ""
            told = ", ".join(
                f"{op} {saved / layers * 1e6:.1f} ({calls[op] / layers:.3g}x)" for op, saved in found.items()
            )
            print(f"{name} of {layers} layers, {count} streams: {whole * 1e3:.3f} ms, {whole / floor:.2f} of the floor,"
                  f" {(whole - floor) / layers * 1e6:.1f} us a layer above it. Without, us a layer: {told}",
                  flush=True)  # fmt: skip


class Span(NamedTuple):
    """A kernel's run, in microseconds."""

    name: str
    start: float
    end: float


def report_kernels(shapes: Sequence[str], streams: Sequence[int]) -> None:
    """Of dense models."""
    ceilings = measure(DEVICE)
    torch.cuda.empty_cache()
    print(f"{torch.cuda.get_device_name()}: copy {ceilings.copy / 1e12:.2f} TB/s, {ceilings.bf16 / 1e12:.0f} TFLOP/s")
    for named in shapes:
        name, _, layers = named.partition(":")
        shape = SHAPES[name].with_layers(int(layers or LAYERS[name]))
        with torch.inference_mode():
            model, switched, caches = make(shape.full_config, max(streams))
            for count in streams:
                logits = torch.empty(count, shape.full_config["vocab_size"], dtype=DTYPE, device=DEVICE)
                step = partial(sampled, model, switched.kernels, caches, decodes(count), logits)
                step()
                print(f"{named}, {count} streams of {CONTEXT}: {seconds(step) * 1e3:.3f} ms")
                print_classes(profiled(step), least_of(shape, count, ceilings))
            del model, switched, caches, step, logits
        torch.cuda.empty_cache()


def sampled(model: Model, kernels: Kernels, caches: Caches, batch: ForwardBatch, logits: Tensor) -> object:
    return kernels.sampling(model.compute_logits(model.forward(batch, caches.layers), out=logits), SamplingBatch())


def profiled(step: Callable[[], object]) -> list[Span]:
    """What ran in `REPLAYS` replays of its graph, in order."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        for _ in range(REPLAYS):
            graph.replay()
        torch.cuda.synchronize()
    spans = [Span(event.name, event.time_range.start, event.time_range.end) for event in found.events()
             if event.device_type.name == "CUDA"]  # fmt: skip
    return sorted(spans, key=lambda span: span.start)


def by_class(spans: Iterable[Span]) -> tuple[dict[str, float], Counter[str], float]:
    """Microseconds of each class and how many kernels it has, and those in which none runs. Where kernels overlap, the
    time is that of the first: the next one may only wait."""
    times: dict[str, float] = defaultdict(float)
    counts: Counter[str] = Counter()
    gaps, ended = 0.0, None
    for span in spans:
        kind = next((kind for kind, parts in CLASSES.items() if any(part in span.name for part in parts)), "others")
        start = span.start if ended is None else max(span.start, ended)
        gaps += 0.0 if ended is None else start - ended
        times[kind] += max(span.end - start, 0.0)
        counts[kind] += 1
        ended = max(span.end, ended or 0.0)
    return times, counts, gaps


def print_classes(spans: list[Span], least: dict[str, float]) -> None:
    times, counts, gaps = by_class(spans)
    whole = sum(times.values()) + gaps
    print(f"  busy {1 - gaps / whole:.1%}, {whole / REPLAYS / 1e3:.3f} ms a step")
    for kind, time in sorted(times.items(), key=lambda each: -each[1]):
        known = ""
        if kind in least:
            known = f"{least[kind] * 1e3:8.3f} ms at its ceiling, {least[kind] * 1e6 * REPLAYS / time:.0%}"
        print(f"  {kind:<11} {time / REPLAYS / 1e3:8.3f} ms, {counts[kind] / REPLAYS:5.0f} kernels {known}")
    longest: dict[str, float] = defaultdict(float)
    for span in spans:
        longest[span.name[:90]] += span.end - span.start
    for name, time in sorted(longest.items(), key=lambda each: -each[1])[:9]:
        number = sum(span.name[:90] == name for span in spans)
        print(f"    {time / number:8.1f} us x {number / REPLAYS:4.0f}  {name}")


def least_of(shape: Shape, streams: int, ceilings: Ceilings) -> dict[str, float]:
    """Seconds that products and attention take at the ceilings: what they read, or their operations if that is more."""
    weights = read_by_step(shape, 0, 0)
    cached = read_by_step(shape, streams, CONTEXT) - weights
    return {
        "products": max(weights / ceilings.copy, weights * streams / ceilings.bf16),
        "attention": cached / ceilings.copy,
    }


def make(described: dict[str, Any], streams: int) -> tuple[Model, Switched, Caches]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(described))
        config = read_config(Path(folder))
    context = selection_context(
        config, device="cuda", capability=torch.cuda.get_device_capability(), dtype="bfloat16", kv_cache_dtype="",
        cuda_graphs=True, libraries=installed(),
    )  # fmt: skip
    switched = Switched(bind(chosen_names(explain(OPS, context))))
    model = build(BuildContext(config, switched.kernels, DEVICE, DTYPE, RUNG))
    for weight in model.destinations().values():
        weight.normal_(0, 0.02)
    model.prepare()
    caches = Caches(config.caches_of_layers, num_blocks=streams * RUNG // BLOCK, block_size=BLOCK, dtype=DTYPE,
                    device=DEVICE, state_rows=streams + 1)  # fmt: skip
    return model, switched, caches


def decodes(streams: int) -> ForwardBatch:
    """One token of each sequence, in a graph for contexts of up to `RUNG`."""
    tables = torch.arange(streams * RUNG // BLOCK, dtype=torch.int32, device=DEVICE).view(streams, -1)
    positions = torch.full((streams,), CONTEXT - 1, device=DEVICE)
    metadata = AttentionMetadata(
        query_lens=[1] * streams,
        context_lens=[RUNG] * streams,
        num_decodes=streams,
        query_start_loc=torch.arange(streams + 1, dtype=torch.int32, device=DEVICE),
        seq_lens=torch.full((streams,), CONTEXT, dtype=torch.int32, device=DEVICE),
        block_tables=tables,
        slot_mapping=torch.arange(streams, device=DEVICE) * RUNG + CONTEXT - 1,
    )
    token_ids = torch.randint(100, (streams,), device=DEVICE)
    return ForwardBatch(token_ids, positions, metadata, torch.arange(streams, device=DEVICE))


def seconds(step: Callable[[], object], repeats: int = 15) -> float:
    """The median of the graph's replays."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return sorted(times)[repeats // 2]


if __name__ == "__main__":
    main()
