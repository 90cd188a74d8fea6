"""`python -m tests.gpu.bench.tune_memory_bound`: times tiles of the ops that only move bytes, for `variants.py`."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from kernels.gated_activation import triton as gated_activation
from kernels.rms_norm import triton as rms_norm
from kernels.rotary_cache import triton as rotary_cache
from kernels.variants import Variant
from tests.gpu.bench import memory_bound
from tests.gpu.bench.ceilings import measure, median_s
from tests.gpu.bench.precompile import precompile
from tests.gpu.bench.row import Row

Constants = Mapping[str, int]
SHOWN = 6  # of the best


class Trial(NamedTuple):
    """Rows of one op, each made by a function of `memory_bound` from its arguments, to be timed under each choice of
    constants and of warps."""

    op: Any  # the module of its kernel
    make: Callable[..., Row]
    rows: tuple[tuple[Any, ...], ...]
    constants: list[Constants]
    warps: tuple[int, ...]


_TILES: list[Constants] = [
    {"ROWS": rows, "BLOCK": block} for rows, block in ((16, 256), (8, 256), (4, 256), (4, 512), (2, 1024), (1, 2048))
]
TRIALS = [
    Trial(rms_norm, memory_bound._norm, ((16384, 8192), (16384, 5120), (16384, 4096)), [{}], (4, 8, 16, 32)),
    Trial(
        rotary_cache,
        memory_bound._rotary_cache,
        ((32768, False, torch.bfloat16), (32768, True, torch.bfloat16), (32768, True, torch.float8_e4m3fn)),
        [{"TILE": tile} for tile in (512, 1024, 2048, 4096)],
        (2, 4, 8),
    ),
    Trial(gated_activation, memory_bound._activation, ((16384, 14336, "silu"), (131072, 768, "silu")), _TILES, (4, 8)),
]


def main() -> None:
    device = torch.device("cuda")
    copy = measure(device).copy
    for trial in TRIALS:
        choices = list(itertools.product(trial.constants, trial.warps))
        for arguments in trial.rows:
            row = trial.make(device, *arguments, None)
            precompile([_variant_of(trial.op, row, choice) for choice in choices])
            times = []
            for choice in choices:
                with _chosen(trial.op, *choice):
                    times.append((median_s(row.run["triton"], 60), choice))
            for time, (constants, warps) in sorted(times, key=lambda found: found[0])[:SHOWN]:
                print(f"{row.op} {row.shape}: {dict(constants)} {warps} warps {time * 1e6:.1f} us, "
                      f"{row.bytes / time / copy:.1%} of copy", flush=True)  # fmt: skip


@contextmanager
def _chosen(op: Any, constants: Constants, warps: int) -> Iterator[None]:
    """Meanwhile `op` launches with these in place of what its `variants.py` says."""
    before = {name: getattr(op.variants, name) for name in (*constants, "of")}

    def of(*arguments: object) -> Variant:
        return dataclasses.replace(before["of"](*arguments), num_warps=warps)

    for name, value in {**constants, "of": of}.items():
        setattr(op.variants, name, value)
    op._plan.cache_clear()
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(op.variants, name, value)
        op._plan.cache_clear()


def _variant_of(op: Any, row: Row, choice: tuple[Constants, int]) -> Variant:
    """What `row` would launch under `choice`."""
    found: list[Variant] = []
    launch = op.launch
    op.launch = lambda kernel, variant, *_: found.append(variant)
    try:
        with _chosen(op, *choice):
            row.run["triton"]()
    finally:
        op.launch = launch
    return found[0]


if __name__ == "__main__":
    main()
