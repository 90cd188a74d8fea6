"""A kernel's key depends on the kernel alone."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import sys
from triton.runtime import cache
from kernels.cast import pinning
pinning.pin(cache.FileCacheManager, None)
from kernels.paged_attention import triton_kernels as triton
print(*sorted(getattr(triton, name).cache_key for name in sys.argv[1:]))
"""
KERNELS = ("prefill_kernel", "decode_kernel", "merge_kernel")


def keys(*order: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *order], env=environ, capture_output=True, text=True, check=True
    ).stdout


def test_a_key_does_not_depend_on_what_the_process_launched_before():
    """Triton by itself gives `merge_kernel` another key after `decode_kernel`, which calls the same function: a worker
    of a cast and a sealed engine would not agree."""
    assert keys(*KERNELS) == keys(*reversed(KERNELS))
