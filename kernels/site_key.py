"""The name of a place where a model calls an op: in a plan, in a profile, and where the engine binds it."""

from __future__ import annotations


def site_key(op: str, *sizes: int, dtype: str = "") -> str:
    """`linear@4096x14336`; with `dtype` where the op computes in another one there: `linear@64x4096:float32`."""
    return f"{op}@{'x'.join(map(str, sizes))}{f':{dtype}' if dtype else ''}"
