"""`python -m tests.gpu.bench.table [MODULE ...]`: every op's share of the measured ceilings, as a table and one JSON
line; with modules of this folder (`moe` has the products in FP8 too), only theirs.

INGOT_FLASHINFER_CAST names a cast's folder whose FlashInfer modules stand beside ours.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

import tests.gpu.bench
from kernels import flashinfer
from kernels.cast.architectures import architecture_named
from tests.gpu.bench.ceilings import Ceilings, measure, median_s
from tests.gpu.bench.row import Row

HEADER = f"{'op':<26} {'shape':<34} {'triton':>9} {'of ceiling':>11} {'goal':>6}  others"


def main() -> int:
    device = torch.device("cuda")
    only = sys.argv[1:]
    cast = os.environ.get("INGOT_FLASHINFER_CAST")
    if cast is not None:
        flashinfer.seal(Path(cast), architecture_named("sm_{}{}".format(*torch.cuda.get_device_capability())))
    ceilings = measure(device)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: copy {ceilings.copy / 1e12:.2f} TB/s, "
          f"bf16 {ceilings.bf16 / 1e12:.0f} TFLOP/s, fp8 {ceilings.fp8 / 1e12:.0f} TFLOP/s")  # fmt: skip
    print(HEADER)
    figures: dict[str, dict[str, object]] = {}
    for row in _rows(device, only):
        figures.update(_measure(row, ceilings))
    print(json.dumps(figures))
    return 0 if all(figure["ok"] for figure in figures.values()) else 1


def _rows(device: torch.device, only: list[str]) -> Iterator[Row]:
    """Of every module beside this one that has some. Each module's tensors are freed before the next one's."""
    modules = sorted(found.name for found in pkgutil.iter_modules(tests.gpu.bench.__path__))
    if unknown := set(only) - set(modules):
        sys.exit(f"no module of tests/gpu/bench is named {' or '.join(sorted(unknown))}")
    for module in only or modules:
        loaded = importlib.import_module(f"tests.gpu.bench.{module}")
        if hasattr(loaded, "rows"):
            yield from loaded.rows(device)
            torch.cuda.empty_cache()


def _measure(row: Row, ceilings: Ceilings) -> dict[str, dict[str, object]]:
    times = {name: median_s(call) for name, call in row.run.items()}
    ours = times["triton"]
    ceiling = getattr(ceilings, row.ceiling)
    work = row.bytes if row.ceiling == "copy" else row.flops
    share = work / ours / ceiling if ceiling and work else float("nan")
    reached = times[row.goal_against] / ours if row.goal_against else share
    others = "  ".join(
        f"{name} {_time(time)} ({ours / time:.2f}x ours)" for name, time in times.items() if name != "triton"
    )
    goal = f"{row.goal:.0%}" if row.goal is not None else ""
    missed = row.goal is not None and reached < row.goal
    print(f"{row.op:<26} {row.shape:<34} {_time(ours):>9} {share:>11.0%} {goal:>6}{'!' if missed else ' '} {others}",
          flush=True)  # fmt: skip
    if row.goal is None:
        return {}
    return {f"{row.op} {row.shape}": {"value": round(reached, 3), "goal": row.goal, "ok": not missed}}


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


if __name__ == "__main__":
    sys.exit(main())
