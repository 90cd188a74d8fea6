"""What a worker of a cast answers."""

from __future__ import annotations

import msgspec

from kernels.cast.manifest import CastVariant


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of `variant` and `error` is there."""

    variant: CastVariant | None = None
    error: str = ""
    disk_full: bool = False
