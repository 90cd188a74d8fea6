"""The usual forms of backends, for `kernels/catalogue.py` and what it lists from elsewhere."""

from __future__ import annotations

from functools import partial
from typing import Final

from kernels.cpu import library
from kernels.selection import Backend

HALVES: Final = ("bfloat16", "float16")
FLOATS: Final = ("float32", "bfloat16", "float16")
FLASHINFER: Final = "flashinfer>=0.6.13"

on_gpus = partial(Backend, devices=("cuda",), dtypes=HALVES, min_capability=(8, 0))
triton = partial(on_gpus, "triton")
flashinfer = partial(on_gpus, "flashinfer", libraries=(FLASHINFER,))
cpp = partial(Backend, "cpp", devices=("cpu",), dtypes=("float32", "bfloat16"), libraries=(library.NAME,))
torch = partial(Backend, "torch", dtypes=FLOATS)
