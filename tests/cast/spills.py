"""Kernels that may spill registers, each with the reason; no other may."""

from __future__ import annotations

from typing import NamedTuple

from kernels.cast.manifest import Manifest


class Known(NamedTuple):
    """`words` are all to be in the variant's name, and `most` is in bytes per thread."""

    architectures: tuple[str, ...]
    words: tuple[str, ...]
    most: int
    reason: str


KNOWN = (
    Known(
        ("sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121"),
        ("fp8_product_kernel", "ACTIVATION=gelu", "warps=16"),
        128,
        "the error function of the epilogue, once for each tile: the loop over the weights spills nothing",
    ),
    Known(
        ("sm_90", "sm_100", "sm_103"),
        ("prefill_kernel", "HEAD_DIM=256", "ROWS=128", "PAGED=True"),
        400,
        "measured on an H100: faster than every tile that spills less (kernels/paged_attention/variants.py)",
    ),
    Known(
        ("sm_90", "sm_100", "sm_103"),
        ("decode_kernel", "RANK=512", "ROWS=64"),
        200,
        "the sums of 64 heads take half of the registers, and with fewer heads latents are read more often",
    ),
    Known(
        ("sm_90",),
        ("hopper_decode_kernel",),
        200,
        "what is the same for all tiles: the loop over the tiles of a part spills next to nothing",
    ),
    Known(
        ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121"),
        ("attend_kernel", "WINDOW=128"),
        640,
        "sums of 64 heads, or queries of 16, fill half of the registers; measured on an H100, smaller tiles are slower",
    ),
    Known(
        ("sm_100", "sm_103"),
        ("prefill_kernel", "RANK=512"),
        16,
        "two registers around the loop over the keys",
    ),
)


def unexpected(manifest: Manifest) -> list[str]:
    """The spilling variants of a cast that are not known to, or spill more than they may."""
    return [
        f"{variant.stack} bytes: {variant.name}"
        for variant in manifest.spilling
        if not any(
            manifest.architecture in known.architectures
            and all(word in variant.name for word in known.words)
            and (variant.stack or 0) <= known.most
            for known in KNOWN
        )
    ]
