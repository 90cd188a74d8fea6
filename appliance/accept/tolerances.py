"""How far two engines that compute correctly may differ, by the coarser dtype of the two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec


class Tolerances(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of the oracle's checks: differences of logprobs in nats, `top1` a share."""

    max: float
    mean: float
    kl: float
    top1: float


# From the finest to the coarsest. A logprob is a sum of products rounded to 24, 11 and 8 bits; unlikely tokens, which
# prompts have, move most. FP8 stands for weights or a cache in it.
TOLERANCES: Final[dict[str, Tolerances]] = {
    "float32": Tolerances(max=1e-3, mean=1e-4, kl=1e-5, top1=0.999),
    "float16": Tolerances(max=0.1, mean=0.01, kl=1e-3, top1=0.98),
    "bfloat16": Tolerances(max=0.5, mean=0.05, kl=5e-3, top1=0.95),
    "fp8": Tolerances(max=1.0, mean=0.15, kl=2e-2, top1=0.9),
}
UNKNOWN: Final = "bfloat16"
_ORDER: Final = tuple(TOLERANCES)


def coarser(*dtypes: str | None) -> str:
    """A dtype that is not known counts as UNKNOWN."""
    return max((dtype if dtype in TOLERANCES else UNKNOWN for dtype in dtypes), key=_ORDER.index)


def tolerances_for(dtype: str, given: Mapping[str, float]) -> Tolerances:
    """`given` replaces some of them."""
    return msgspec.structs.replace(TOLERANCES[dtype], **given)


def read_tolerances(pairs: tuple[str, ...]) -> dict[str, float]:
    """Of NAME=VALUE. Raises ValueError, which says what to write instead."""
    found: dict[str, float] = {}
    names = Tolerances.__struct_fields__
    for pair in pairs:
        name, equals, value = pair.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if name not in names or not equals or not 0 <= number < float("inf"):
            raise ValueError(f"{pair} is no tolerance: write NAME=VALUE with a NAME of {', '.join(names)}")
        if name == "top1" and number > 1:
            raise ValueError(f"{pair} is out of range: top1 is a share, 0 to 1")
        found[name] = number
    return found
