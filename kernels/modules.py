"""The identity of a library that FlashInfer builds. Imports neither torch nor FlashInfer, so that a plan can be made
anywhere.

An op that has a FlashInfer backend declares in `kernels/<op>/modules.py`, by one function

    def modules(arch: int, model: Context | None = None) -> Iterator[Module]

the modules that a cast for `arch` holds: with `model`, all that the backend may load for a model of this shape;
without, those of common models, since all that FlashInfer could build takes hours. The op's launching code takes its
choices from the same place.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.variants import Constant


@dataclass(frozen=True)
class Module:
    """`name` is FlashInfer's own, by which it finds the library. `generator` is the `module:function` of FlashInfer
    that describes how to build it, and `arguments` are its arguments, with torch's names for dtypes. `headers` are the
    CUDA library headers it includes beyond those of the compiler."""

    op: str
    name: str
    generator: str
    arguments: tuple[tuple[str, Constant], ...] = ()
    headers: tuple[str, ...] = ()
