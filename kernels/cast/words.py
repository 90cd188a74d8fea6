"""The messages of the processes that cast and verify, one JSON line each."""

from __future__ import annotations

import msgspec

from kernels.cast.manifest import CastVariant


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker's answer about one variant: either `variant` or `error` is set."""

    variant: CastVariant | None = None
    error: str = ""
    disk_full: bool = False


class OpProof(msgspec.Struct, frozen=True, kw_only=True, tag="op", omit_defaults=True):
    """The result for one op: `proven` of its `variants` were found by their keys, or launched on a GPU. `error` is the
    error that came closest to its `tolerance` or exceeded it most; None if nothing was launched."""

    op: str
    variants: int
    proven: int
    error: float | None = None
    tolerance: float | None = None
    problems: tuple[str, ...] = ()


class ForwardProof(msgspec.Struct, frozen=True, kw_only=True, tag="forward", omit_defaults=True):
    """The result for a whole model: `tokens` were generated, and `error` is the mean difference of the log
    probabilities from those of the same model in float32 on the CPU. `backends` maps each op to the backend it used."""

    tokens: int
    error: float
    tolerance: float
    backends: dict[str, str] = {}
    problems: tuple[str, ...] = ()


class Bystanders(msgspec.Struct, frozen=True, kw_only=True, tag="bystanders", omit_defaults=True):
    """Side effects of a sealed process: kernels it compiled, programs it started other than to look for libraries, and
    `compilers` it loaded to compile something. `mapped` names all mapped compilers, including those merely linked."""

    device: str = ""
    compiled: tuple[str, ...] = ()
    spawned: tuple[str, ...] = ()
    compilers: tuple[str, ...] = ()
    mapped: tuple[str, ...] = ()


Said = OpProof | ForwardProof | Bystanders
