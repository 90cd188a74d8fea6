"""The one place where Triton kernels are launched: always as a declared variant, and noticed by who listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import triton
from triton import knobs
from triton.runtime.driver import driver

from kernels.cast.sealed_cache import CacheMissError
from kernels.seal import not_cast
from kernels.variants import Variant

# What the interpreter's results are computed for; it has no architecture of its own.
INTERPRETED_AS = 90

_architecture: int | None = None
_listeners: list[Callable[[Variant], None]] = []


def architecture() -> int:
    """The architecture that kernels are chosen for: that of the process's one GPU, as 90 for sm_90."""
    global _architecture
    if _architecture is None:
        interpreted = knobs.runtime.interpret
        _architecture = INTERPRETED_AS if interpreted else int(driver.active.get_current_target().arch)
    return _architecture


@contextmanager
def launching_for(arch: int) -> Iterator[None]:
    """Choose variants for `arch` meanwhile; for tests and for a cast."""
    global _architecture
    before, _architecture = _architecture, arch
    try:
        yield
    finally:
        _architecture = before


@contextmanager
def listening(listener: Callable[[Variant], None]) -> Iterator[None]:
    """Call `listener` with the variant of every launch meanwhile."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def launch(kernel: Any, variant: Variant, grid: tuple[int, ...], *arguments: Any) -> None:
    """Launch `kernel`, a `triton.jit` function, over `grid` with the variant's constants.

    Raises:
        NotCast: the engine is sealed and the cast does not hold this variant for these arguments.
    """
    for listener in _listeners:
        listener(variant)
    triton.set_allocator(_scratch)  # of this thread: Triton keeps it in a context variable
    try:
        kernel[grid](*arguments, **variant.options)
    except CacheMissError:
        raise not_cast(variant, kernel.params, arguments) from None


def _scratch(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    """Where a kernel lays its descriptors of bulk copies; fresh memory of torch is aligned to 512 bytes."""
    return torch.empty(size, dtype=torch.int8, device="cuda")
