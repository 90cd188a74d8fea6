"""The identity of a compiled kernel. Imports neither torch nor Triton, so that a plan can be made anywhere.

An op that has a Triton backend declares its closed set of variants in `kernels/<op>/variants.py`, by one function

    def variants(arch: int, model: Context | None = None) -> Iterator[Variant]

which yields every variant the op may launch on `arch` (80, 86, 89, 90, 100, 103, 120 or 121), or with `model` only
those a model of this shape needs. The op's launching code takes its variants from the same module: what the engine
may launch is what a cast holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

Constant = bool | int | float | str


@dataclass(frozen=True)
class Variant:
    """One compiled form of one kernel.

    `kernel` is `module:function`. `arguments` gives the type of each run-time argument in order, as Triton writes
    them: "*bf16", "*fp16", "*fp32", "*fp8e4nv", "*u8", "*i32", "*i64" for tensors (16-byte aligned), "i32" and "fp32"
    for numbers. Every number is to be named in the kernel's `do_not_specialize`, so that its value has no part in the
    variant; a size whose divisibility the compiler should know is passed in units (N // 16) and multiplied in the
    kernel. `constants` are the compile-time arguments. `max_registers` is what a thread has at first, where the kernel
    divides them among its warps itself; else 0.
    """

    op: str
    kernel: str
    arguments: tuple[str, ...]
    constants: tuple[tuple[str, Constant], ...]
    num_warps: int = 4
    num_stages: int = 1
    max_registers: int = 0

    @cached_property
    def name(self) -> str:
        """Unique; for people and for the manifest."""
        types = ",".join(self.arguments)
        values = " ".join(f"{key}={value}" for key, value in self.constants)
        return f"{self.kernel.partition(':')[2]}[{types}] {values} warps={self.num_warps} stages={self.num_stages}"

    @cached_property
    def options(self) -> dict[str, Constant]:
        """The keyword arguments of a launch."""
        registers = {"maxnreg": self.max_registers} if self.max_registers else {}
        return dict(self.constants) | {"num_warps": self.num_warps, "num_stages": self.num_stages} | registers


def variant(
    op: str,
    kernel: str,
    arguments: tuple[str, ...],
    constants: Mapping[str, Constant],
    *,
    num_warps: int = 4,
    num_stages: int = 1,
    max_registers: int = 0,
) -> Variant:
    """A variant from a mapping of its constants."""
    return Variant(op, kernel, arguments, tuple(constants.items()), num_warps, num_stages, max_registers)


# The dtypes of `selection.Context` in Triton's spelling.
TRITON_TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float8_e4m3fn": "fp8e4nv"}
