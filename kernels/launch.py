"""The only place where Triton kernels are launched: always as a declared variant, and reported to listeners.

A variant's first launch goes through Triton, which finds the compiled kernel by its arguments. From then on the kernel
is held here, and a launch whose arguments are of the variant's types goes straight to it: a third of Triton's time,
several hundred times a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.runtime.driver import driver

from kernels.cast.sealed_cache import CacheMissError
from kernels.dependent_launch import overlaps
from kernels.seal import not_cast
from kernels.variants import TRITON_TYPES, Constant, Variant

# The architecture the interpreter computes for; it has none of its own.
INTERPRETED_AS = 90

# The dtypes of a variant's tensors, as it declares them.
POINTERS: Final = {f"*{triton_name}": getattr(torch, name) for name, triton_name in TRITON_TYPES.items()} | {
    "*u8": torch.uint8,
    "*i32": torch.int32,
    "*i64": torch.int64,
}

_architecture: int | None = None
_listeners: list[Callable[[Variant], None]] = []
_held: dict[int, _Held] = {}  # by the id of their variants, which they keep alive


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on the CPU."""
    return bool(knobs.runtime.interpret)


def architecture() -> int:
    """The architecture kernels are chosen for, such as 90 for sm_90: that of the process's only GPU."""
    global _architecture
    if _architecture is None:
        _architecture = INTERPRETED_AS if interpreted() else int(driver.active.get_current_target().arch)
    return _architecture


@contextmanager
def launching_for(arch: int) -> Iterator[None]:
    """Choose variants for `arch` within the block; for tests and for a cast."""
    global _architecture
    before, _architecture = _architecture, arch
    try:
        yield
    finally:
        _architecture = before


@contextmanager
def listening(listener: Callable[[Variant], None]) -> Iterator[None]:
    """Call `listener` with the variant of every launch within the block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def options_of(variant: Variant) -> dict[str, Constant]:
    """The keyword arguments of its launch, for this process's architecture."""
    return variant.options | ({"launch_pdl": True} if overlaps() else {})


def cdiv(total: int, size: int) -> int:
    """How many blocks of `size` hold `total`. Triton's own takes 3 us."""
    return -(-total // size)


def launch(kernel: Any, variant: Variant, grid: tuple[int, ...], *arguments: Any) -> None:
    """Launch `kernel`, a `triton.jit` function, over `grid` with the variant's constants.

    Raises:
        NotCast: the engine is sealed and the cast does not hold this variant for these arguments.
    """
    for listener in _listeners:
        listener(variant)
    held = _held.get(id(variant))
    if held is not None and held.fits(arguments):
        held.launch(grid, arguments)
        return
    triton.set_allocator(_scratch)  # of this thread: Triton keeps it in a context variable
    try:
        compiled = kernel[grid](*arguments, **options_of(variant))
    except CacheMissError:
        raise not_cast(variant, kernel.params, arguments) from None
    if held is None and any(isinstance(argument, Tensor) and argument.is_cuda for argument in arguments):
        found = _Held(kernel, variant, compiled)
        if found.fits(arguments):
            _held[id(variant)] = found


class _Held:
    """A variant's compiled kernel, ready for launches on the process's one GPU."""

    __slots__ = ("_compiled", "_constants", "_device", "_numbers", "_pointers", "_scratch", "_stream", "_variant")

    def __init__(self, kernel: Any, variant: Variant, compiled: Any) -> None:
        self._variant = variant
        self._compiled = compiled
        kinds = list(zip(variant.arguments, kernel.params, strict=False))
        # Places of tensors with their dtypes and which bits of their addresses must be 0, and places of whole numbers.
        self._pointers = [
            (place, POINTERS[kind], 0 if parameter.do_not_specialize_on_alignment else 15)
            for place, (kind, parameter) in enumerate(kinds)
            if kind.startswith("*")
        ]
        self._numbers = [place for place, (kind, _) in enumerate(kinds) if kind == "i32"]
        self._constants = tuple(variant.options[parameter.name] for parameter in kernel.params[len(kinds) :])
        self._scratch = compiled.metadata.global_scratch_size > 0
        self._device = driver.active.get_current_device()
        self._stream = driver.active.get_current_stream

    def fits(self, arguments: tuple[Any, ...]) -> bool:
        """Whether Triton would choose this kernel for them."""
        for place, dtype, unaligned in self._pointers:
            tensor = arguments[place]
            if tensor.dtype is not dtype or tensor.data_ptr() & unaligned:
                return False
        return all(-(1 << 31) <= arguments[place] < 1 << 31 for place in self._numbers)

    def launch(self, grid: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
        if self._scratch:
            triton.set_allocator(_scratch)
        x, y, z = (*grid, 1, 1)[:3]
        compiled = self._compiled
        # Without the hooks of Triton's own profiler.
        compiled.run(
            x, y, z, self._stream(self._device), compiled.function, compiled.packed_metadata, None, None, None,
            *arguments, *self._constants,
        )  # fmt: skip


def _scratch(size: int, alignment: int, stream: int | None) -> Tensor:
    """Memory for a kernel's bulk copy descriptors; torch aligns new memory to 512 bytes."""
    return torch.empty(size, dtype=torch.int8, device="cuda")
