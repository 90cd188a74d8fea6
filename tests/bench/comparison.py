"""What a comparison found, with vLLM or with one GPU: a table for people, and figures with the goals of each shape."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from tests.bench.load import Load, Measured
from tests.bench.table import Figure, conclude


class Other(NamedTuple):
    """What Ingot is compared with: its name for people, and in the names of figures."""

    name: str
    key: str


VLLM, ONE_GPU = Other("vLLM", "vllm"), Other("Ingot on one GPU", "one_gpu")


def faster(name: str, streams: Iterable[int], goal: float, other: Other = VLLM) -> dict[str, float]:
    return {f"{name}_{each}_tokens_per_s_of_{other.key}": goal for each in streams}


GPU_GOALS = {
    **faster("128_512", (1, 8, 64), 1.1), **faster("128_512", (256,), 1.4), **faster("8192_256", (1, 2), 1.1),
    "8192_256_1_first_token_of_vllm": 1.0, "8192_256_2_first_token_of_vllm": 1.0, "128_512_64_p99_gap_of_median": 1.3,
}  # fmt: skip
GOALS: dict[str, dict[str, float]] = {
    "llama-27m": {
        "start_of_vllm": round(1 / 6, 3), **faster("64_64", (1, 8, 32), 1.0), **faster("512_64", (1, 8, 32), 1.0)
    },
    "tinyllama-1.1b": {**GPU_GOALS, "128_512_1_token_of_floor": 1.8},
    "qwen3-8b": {**GPU_GOALS, "128_512_1_token_of_floor": 1.15, "start_ingot_s": 6.0},
    "qwen3-30b-a3b": faster("128_512", (1, 64), 1.1),
    "qwen3-next": faster("128_512", (1, 8, 64), 1.1),
    "deepseek-v3": faster("128_512", (1, 8, 64), 1.1),
}  # fmt: skip


# Of two GPUs that share a model, at 64 streams and where prompts are most of the work.
SHARED_LOADS = {"128_512": 64, "8192_256": 8}
SHARED_GOALS = {VLLM: 1.0, ONE_GPU: 1.6}


def goals_of(shape: str, ranks: int, other: Other) -> dict[str, float]:
    """Of `ranks` GPUs that share the model, beside `other`."""
    if ranks == 1:
        return GOALS[shape]
    return {name: goal for load, streams in SHARED_LOADS.items()
            for name, goal in faster(load, (streams,), SHARED_GOALS[other], other).items()}  # fmt: skip


class Turn(NamedTuple):
    """What one server did with a load."""

    measured: Measured
    processor_s: float  # for each output token, of all processors together


Pair = tuple[Turn, Turn]  # ours, theirs
Rounds = dict[Load, list[Pair]]


COLUMNS = {"output tok/s": 18, "ratio": 8, "TPOT": 17, "floor": 8, "TTFT": 18, "p99 gap": 17, "CPU a token": 16}


def compared(rounds: Rounds, floors: dict[Load, float], other: Other = VLLM) -> str:
    """A table for people: medians over the rounds, ours and theirs."""
    count = len(next(iter(rounds.values())))
    lines = [
        f"Ingot and {other.name}, medians of {count} rounds; times in ms, gaps without a prefill running",
        f"{'load':<16}" + "".join(f"{title:>{width}}" for title, width in COLUMNS.items()),
    ]
    for load, pairs in rounds.items():
        cells = (
            _two(pairs, lambda turn: turn.measured.tokens_per_s, 0),
            f"{statistics.median(_ratios(pairs, lambda turn: turn.measured.tokens_per_s)):.2f}x",
            _two(pairs, lambda turn: 1e3 * turn.measured.token, 2),
            f"{1e3 * floors[load]:.2f}" if load in floors else "",
            _two(pairs, lambda turn: 1e3 * turn.measured.first_token, 1),
            _two(pairs, lambda turn: 1e3 * turn.measured.gap_p99, 2),
            _two(pairs, lambda turn: 1e3 * turn.processor_s, 2),
        )
        lines.append(f"{load.name:<16}" + "".join(map(str.rjust, cells, COLUMNS.values())))
    return "\n".join(lines)


def _two(pairs: Sequence[Pair], figure: Callable[[Turn], float], digits: int) -> str:
    ours, theirs = (statistics.median(figure(pair[index]) for pair in pairs) for index in (0, 1))
    return f"{ours:,.{digits}f} {theirs:,.{digits}f}"


def _ratios(pairs: Sequence[Pair], figure: Callable[[Turn], float]) -> list[float]:
    return [figure(ours) / figure(theirs) for ours, theirs in pairs]


def start_figures(starts: Sequence[tuple[float, float]], other: Other = VLLM) -> list[Figure]:
    name, key = other
    ratios = [ours / theirs for ours, theirs in starts]
    return [
        Figure(f"start_of_{key}", f"start to first token, of that of {name}", ratios, None, "x"),
        Figure("start_ingot_s", "start to first token, Ingot", [ours for ours, _ in starts], None),
        Figure(f"start_{key}_s", f"start to first token, {name}", [theirs for _, theirs in starts], None),
    ]


def load_figures(rounds: Rounds, floors: dict[Load, float], other: Other = VLLM) -> list[Figure]:
    figures = []
    for load, pairs in rounds.items():
        key = f"{load.tokens_in}_{load.tokens_out}_{load.streams}"
        speeds = _ratios(pairs, lambda turn: turn.measured.tokens_per_s)
        firsts = _ratios(pairs, lambda turn: turn.measured.first_token)
        gaps = [ours.measured.gap_p99 / ours.measured.gap_median for ours, _ in pairs if ours.measured.gap_median]
        what, of = f"{load.name}, ", f"of that of {other.name}"
        figures += [
            Figure(f"{key}_tokens_per_s_of_{other.key}", f"{what}output tok/s, {of}", speeds, None, "x", at_least=True),
            Figure(f"{key}_first_token_of_{other.key}", f"{what}time to first token, {of}", firsts, None, "x"),
        ]
        if gaps:
            figures.append(Figure(f"{key}_p99_gap_of_median", f"{what}p99 gap, of the median", gaps, None, "x"))
        if load in floors:
            tokens = [ours.measured.token / floors[load] for ours, _ in pairs]
            figures.append(Figure(f"{key}_token_of_floor", f"{what}TPOT, of the floor", tokens, None, "x"))
        for name, turns in (("ingot", [ours for ours, _ in pairs]), (other.key, [theirs for _, theirs in pairs])):
            figures += _absolute(f"{key}_{name}", turns)
    return figures


def _absolute(key: str, turns: Sequence[Turn]) -> list[Figure]:
    seconds = {
        "token": [turn.measured.token for turn in turns],
        "first_token": [turn.measured.first_token for turn in turns],
        "p99_gap": [turn.measured.gap_p99 for turn in turns],
        "processor": [turn.processor_s for turn in turns],
    }
    speeds = [turn.measured.tokens_per_s for turn in turns]
    times = [Figure(f"{key}_{name}_ms", "", [1e3 * value for value in each], None) for name, each in seconds.items()]
    return [Figure(f"{key}_tokens_per_s", "", speeds, None), *times]


def verdict(figures: Sequence[Figure], goals: dict[str, float]) -> int:
    """Print the figures that have a goal, and all of them as JSON; 0 when every goal is met. Goals of loads that were
    not run do not count, and are named."""
    named = {figure.name: figure for figure in figures}
    held = [replace(named.pop(name), goal=goal) for name, goal in goals.items() if name in named]
    missing = sorted(goals.keys() - {figure.name for figure in held})
    if missing:
        print(f"Not measured: {', '.join(missing)}")
    shown = held or [named.pop(figure.name) for figure in figures if figure.what]
    return conclude(shown, list(named.values()))
