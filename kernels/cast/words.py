"""What the processes of a cast and of its verification say, a JSON line each."""

from __future__ import annotations

import msgspec

from kernels.cast.manifest import CastVariant


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker's, on one variant. One of `variant` and `error` is there."""

    variant: CastVariant | None = None
    error: str = ""
    disk_full: bool = False


class OpProof(msgspec.Struct, frozen=True, kw_only=True, tag="op", omit_defaults=True):
    """How one op fared: `proven` of its `variants` were found by their keys, or launched on a GPU. `error` is that of
    the result that came nearest to its `tolerance`, or went farthest beyond it; None where nothing was launched."""

    op: str
    variants: int
    proven: int
    error: float | None = None
    tolerance: float | None = None
    problems: tuple[str, ...] = ()


class ForwardProof(msgspec.Struct, frozen=True, kw_only=True, tag="forward", omit_defaults=True):
    """How a whole model fared: `tokens` were generated, and `error` is the mean difference of the log probabilities
    from those of the same model in float32 on the CPU. `backends` is what each of its ops was computed by."""

    tokens: int
    error: float
    tolerance: float
    backends: dict[str, str] = {}
    problems: tuple[str, ...] = ()


class Bystanders(msgspec.Struct, frozen=True, kw_only=True, tag="bystanders", omit_defaults=True):
    """What a sealed process did besides: kernels that it compiled, programs that it started other than to look for
    libraries, and `compilers` that it loaded to compile something. `mapped` names all compilers that are mapped, also
    those that are merely linked."""

    device: str = ""
    compiled: tuple[str, ...] = ()
    spawned: tuple[str, ...] = ()
    compilers: tuple[str, ...] = ()
    mapped: tuple[str, ...] = ()


Said = OpProof | ForwardProof | Bystanders
