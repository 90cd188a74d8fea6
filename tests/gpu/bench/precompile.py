"""Compile many variants at once, each in a process of its own, so that timing them need not wait for the compiler."""

from __future__ import annotations

import importlib
import multiprocessing
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

import torch

from kernels.variants import Variant

DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp8e4nv": torch.float8_e4m3fn,
    "u8": torch.uint8,
    "i32": torch.int32,
    "i64": torch.int64,
}


def precompile(variants: Iterable[Variant]) -> None:
    """Fill Triton's cache with `variants`; one that does not compile is told when it is launched."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 14), mp_context=context) as pool:
        for name, problem in pool.map(_compile, dict.fromkeys(variants)):
            if problem:
                print(f"  {name}: {problem}")


def _compile(variant: Variant) -> tuple[str, str]:
    module, _, name = variant.kernel.partition(":")
    kernel = getattr(importlib.import_module(module), name)
    arguments = [
        torch.empty(16, dtype=DTYPES[kind[1:]]) if kind.startswith("*") else (17 if kind.startswith("i") else 1.5)
        for kind in variant.arguments
    ]
    try:
        kernel.warmup(
            *arguments,
            grid=(1,),
            **dict(variant.constants),
            num_warps=variant.num_warps,
            num_stages=variant.num_stages,
        )
    except Exception as problem:  # noqa: BLE001 - whatever the compiler raises is this variant's result
        return variant.name, f"{type(problem).__name__}: {str(problem)[:100]}"
    return variant.name, ""
