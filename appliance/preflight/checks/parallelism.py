"""The model can be split over as many devices as the profile asks for, and they exist."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from appliance.checkpoint.sharding import obstacle
from appliance.hardware.device import visible_gpus
from appliance.plan.effective import workers
from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity

# More processes than this never help on one host without GPUs.
MOST_ON_CPU = 8


def run(subject: Subject) -> Iterator[Finding]:
    size = subject.profile.tensor_parallel_size
    if not subject.traits.reads_more and not subject.readable:
        return
    problem = _indivisible(subject, size)
    if problem is not None:
        yield problem
    if subject.device.gpu is not None and subject.profile.ray.address is None:  # with Ray, other hosts have more
        yield from _against_the_gpus(subject)


def _indivisible(subject: Subject, size: int) -> Finding | None:
    why = _why_not(subject, size)
    if why is None:
        return None
    smaller, larger = _nearest(subject, size)
    also = f" The next larger number that works is {larger}." if larger else ""
    return Finding(
        id="tensor-parallel-indivisible",
        severity=Severity.ERROR,
        message=f"The model cannot be split over {size} {_places(subject)}: {why}.{also}",
        field="tensor-parallel-size",
        value=size,
        evidence=(str(subject.folder / "config.json"),),
        fix=Fix(text=f"Use {smaller}.", patch={"tensor-parallel-size": smaller if smaller > 1 else None}),
    )


def _nearest(subject: Subject, size: int) -> tuple[int, int | None]:
    """The next smaller and the next larger number that works, as far as there are so many GPUs; 1 always does."""
    smaller = next(found for found in range(size - 1, 0, -1) if found == 1 or _why_not(subject, found) is None)
    most = len(visible_gpus(subject.context.inventory, subject.engine_environ)) if subject.device.gpu else MOST_ON_CPU
    return smaller, next((found for found in range(size + 1, most + 1) if _why_not(subject, found) is None), None)


def _places(subject: Subject) -> str:
    return "processes" if subject.device.gpu is None else "GPUs"


def _why_not(subject: Subject, size: int) -> str | None:
    return _why_vllm_does_not(subject, size) if subject.traits.reads_more else obstacle(subject.config, size)


def _why_vllm_does_not(subject: Subject, size: int) -> str | None:
    """As vLLM tests it: heads are shared out evenly, key-value heads are shared out or repeated evenly, and no block of
    FP8 weights is cut."""
    config = subject.raw_config
    text = config.get("text_config")
    shape: dict[str, Any] = text if isinstance(text, dict) else config
    heads, kv_heads = _integer(shape, "num_attention_heads"), _integer(shape, "num_key_value_heads")
    if heads and heads % size:
        return f"its {heads} attention heads are not divisible by {size}"
    if heads and kv_heads and not _integer(shape, "kv_lora_rank") and kv_heads % size and size % kv_heads:
        return f"its {kv_heads} key-value heads can be neither divided nor repeated evenly over {size} GPUs"
    given = config.get("quantization_config") or shape.get("quantization_config")
    blocks = given.get("weight_block_size") if isinstance(given, dict) else None
    block = blocks[0] if isinstance(blocks, list) and blocks and isinstance(blocks[0], int) else 0
    spread = subject.profile.vllm.extra_args.get("enable-expert-parallel")
    for name in ("intermediate_size", *(() if spread else ("moe_intermediate_size",))):
        width = _integer(shape, name)
        if block > 1 and width and size > 1 and width % size == 0 and (width // size) % block:
            return (
                f"{name} {width:,} over {size} GPUs is {width // size:,}, not a multiple of the FP8 block size {block}"
            )
    return None


def _integer(shape: dict[str, Any], name: str) -> int:
    value = shape.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _against_the_gpus(subject: Subject) -> Iterator[Finding]:
    profile, needed = subject.profile, workers(subject.profile)
    if needed == 1:
        return
    gpus = visible_gpus(subject.context.inventory, subject.engine_environ)
    slices = [gpu for gpu in gpus if gpu.parent_uuid]
    whole = len(gpus) - len(slices)
    evidence = tuple(f"here: {gpu}" for gpu in gpus[:16])
    first = subject.device.gpu
    if first is not None and first.parent_uuid and profile.device != "auto" and not subject.traits.reads_more:
        yield Finding(
            id="slice-cannot-share",
            severity=Severity.ERROR,
            message=f"The profile asks for {needed} GPUs, beginning with {first}. It is a MIG slice, and those cannot "
            "share a model.",
            field="device",
            value=profile.device,
            evidence=evidence,
            fix=Fix(text="Use the slice alone, or name a whole GPU.", patch={"tensor-parallel-size": None}),
        )
        return
    if whole < needed:
        best = next((n for n in range(whole, 1, -1) if _why_not(subject, n) is None), 1)
        others = needed // profile.tensor_parallel_size
        patch = {"tensor-parallel-size": best if best > 1 else None} if others == 1 else None
        there = f"{whole} whole GPU{'s are' if whole != 1 else ' is'} visible"
        also = " MIG slices cannot share a model." if slices else ""
        yield Finding(
            id="gpus-too-few",
            severity=Severity.ERROR,
            message=f"The profile asks for {needed} GPUs, but {there}.{also}",
            field="tensor-parallel-size",
            value=profile.tensor_parallel_size,
            evidence=evidence,
            fix=Fix(
                text=f"Use {best}."
                if patch
                else "Lower pipeline- or data-parallel-size in vllm.extra-args, or add hosts with `ray.address`.",
                patch=patch,
            ),
        )
        return
    kinds = sorted({f"{gpu.name}, {gpu.architecture}" for gpu in subject.gpus})
    if len(kinds) > 1:
        yield Finding(
            id="gpus-differ",
            severity=Severity.ERROR if _decide_apart(subject) else Severity.WARNING,
            message=f"The model would be split over different GPUs ({'; '.join(kinds)}). " + (
                "Their kernels round differently, so that they would choose different experts or tokens for one step."
                if _decide_apart(subject)
                else "The slowest sets the pace, and the smallest the size of the KV cache."
            ),
            field="tensor-parallel-size",
            value=profile.tensor_parallel_size,
            evidence=evidence,
            fix=Fix(text="List GPUs of one kind in CUDA_VISIBLE_DEVICES, or use one GPU.",
                    patch={"tensor-parallel-size": None} if needed == profile.tensor_parallel_size else None),
        )  # fmt: skip


def _decide_apart(subject: Subject) -> bool:
    """Whether ranks of the native engine, each of which routes and selects by itself, would do so differently."""
    return not subject.traits.reads_more and len({gpu.compute_capability for gpu in subject.gpus}) > 1
