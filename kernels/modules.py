"""What a library that FlashInfer builds is told apart by. Imports neither torch nor FlashInfer, so that a plan can be
made anywhere.

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
    """`name` is FlashInfer's own, by which it looks for the library. `generator` is the `module:function` of FlashInfer
    that describes how to build it, and `arguments` are what it takes, dtypes by their names in torch. `headers` are
    those of CUDA libraries that it includes, beside what comes with the compiler."""

    op: str
    name: str
    generator: str
    arguments: tuple[tuple[str, Constant], ...] = ()
    headers: tuple[str, ...] = ()
