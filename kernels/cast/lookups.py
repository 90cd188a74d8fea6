"""Looks up every declared variant in a cast, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.cast import plan, stub_driver
from kernels.cast.architectures import ARCHITECTURES
from kernels.cast.errors import CastError
from kernels.cast.fake_arguments import fake_arguments
from kernels.cast.manifest import Manifest
from kernels.cast.words import OpProof
from kernels.launch import launch
from kernels.named import load
from kernels.seal import NotCast
from kernels.variants import Variant


def found(manifest: Manifest) -> Iterator[OpProof]:
    """For each op: whether a launch of each of its variants finds a kernel. A complete cast must have every declared
    variant, one limited to some models only those it lists."""
    architecture = ARCHITECTURES[manifest.architecture]
    stub_driver.activate(architecture)
    held = {variant.name for variant in manifest.variants}
    by_op: dict[str, list[Variant]] = {}
    declared = plan.triton_variants(architecture.number)
    for variant in declared:
        if not manifest.models or variant.name in held:
            by_op.setdefault(variant.op, []).append(variant)
    unknown = held - {variant.name for variant in declared}
    for op, variants in by_op.items():
        problems = [problem for variant in variants if (problem := _problem(variant))]
        yield OpProof(op=op, variants=len(variants), proven=len(variants) - len(problems), problems=tuple(problems))
    for op in {variant.op for variant in manifest.variants if variant.name in unknown}:
        names = [variant.name for variant in manifest.variants if variant.op == op and variant.name in unknown]
        yield OpProof(
            op=op, variants=len(names), proven=0,
            problems=tuple(f"{name} is in the cast but is not a variant of this Ingot" for name in names),
        )  # fmt: skip


def _problem(variant: Variant) -> str | None:
    try:
        launch(load(variant.kernel), variant, (1,), *fake_arguments(variant))
    except (NotCast, CastError) as error:
        return str(error)
    return None
