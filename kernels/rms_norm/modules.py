"""FlashInfer's module for norms: one serves every size and dtype."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.context import Context
from kernels.modules import Module

NORM = Module("rms_norm", "norm", "flashinfer.jit.norm:gen_norm_module", headers=("cublasLt.h",))


def modules(arch: int, model: Context | None = None) -> Iterator[Module]:
    yield NORM
