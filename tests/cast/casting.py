"""`python -m tests.cast.casting ARCHITECTURE FOLDER COUNT`: a cast of a few small variants, in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from kernels.cast.architectures import architecture_named
from kernels.cast.build import Order
from kernels.cast.build import build as build_order
from kernels.variants import Variant


def order(folder: Path, variants: Sequence[Variant], architecture: str = "sm_80", jobs: int = 1) -> Order:
    return Order(
        architecture=architecture_named(architecture), variants=variants, modules=(), folder=folder, ingot="0.0.0",
        models=("odd",), jobs=jobs,
    )  # fmt: skip


if __name__ == "__main__":
    from kernels.rms_norm.variants import variants as norms

    name, place, count = sys.argv[1:]
    architecture = architecture_named(name)
    some = [variant for variant, _ in zip(norms(architecture.number), range(int(count)), strict=False)]
    build_order(order(Path(place), some, name), lambda _: None)
