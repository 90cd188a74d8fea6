"""What a cast contains: every variant the engine may launch on an architecture. Imports neither torch nor Triton."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from kernels.backend import Backend
from kernels.cast import environment
from kernels.catalogue import OPS
from kernels.context import Context
from kernels.named import load
from kernels.selection import Op
from kernels.variants import Variant


def triton_variants(arch: int, models: Sequence[Context] = ()) -> tuple[Variant, ...]:
    """The variants of every op, each once; with `models`, those that at least one model needs."""
    found: dict[Variant, None] = {}
    libraries = {"triton": environment.installed("triton") or ""}
    for op, backend in triton_backends(arch):
        declared = load(backend.variants)
        for model in served(op, backend, arch, models, libraries) if models else (None,):
            found |= dict.fromkeys(declared(arch, model))
    return tuple(found)


def triton_backends(arch: int) -> Iterator[tuple[Op, Backend]]:
    """The backends that compile variants for `arch`."""
    capability = divmod(arch, 10)
    for op in OPS:
        for backend in op.of("native"):
            lowest, highest = backend.min_capability or capability, backend.max_capability or capability
            if backend.variants and lowest <= capability <= highest:
                yield op, backend


def served(
    op: Op, backend: Backend, arch: int, models: Sequence[Context], libraries: Mapping[str, str]
) -> Iterator[Context]:
    """The models that call the op and could use the backend on `arch`, given the cast."""
    for model in models:
        context = replace(model, device="cuda", capability=divmod(arch, 10), cast=None, libraries=libraries)
        if op.needed(context) and next(backend.objections(context), None) is None:
            yield context
