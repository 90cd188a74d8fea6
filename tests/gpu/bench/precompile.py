"""Compile many variants at once, each in a process of its own, so that timing them need not wait for the compiler."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

from kernels.cast.fake_arguments import fake_arguments
from kernels.launch import options_of
from kernels.named import load
from kernels.variants import Variant


def precompile(variants: Iterable[Variant]) -> None:
    """Fill Triton's cache with `variants`; one that does not compile is reported when it is launched."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 14), mp_context=context) as pool:
        for name, problem in pool.map(_compile, dict.fromkeys(variants)):
            if problem:
                print(f"  {name}: {problem}")


def _compile(variant: Variant) -> tuple[str, str]:
    try:
        load(variant.kernel).warmup(*fake_arguments(variant), grid=(1,), **options_of(variant))
    except Exception as problem:  # noqa: BLE001 - whatever the compiler raises is this variant's result
        return variant.name, f"{type(problem).__name__}: {str(problem)[:100]}"
    return variant.name, ""
