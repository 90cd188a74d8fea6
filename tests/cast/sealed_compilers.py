"""`python -m tests.cast.sealed_compilers CAST [DEVICE]`: seals itself and tries every way to compile. It prints as
JSON what each raised or returned. With a GPU as DEVICE it tries those that need one, too.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernels.cast import mapped
from kernels.seal import seal

# In a child process, which is not sealed: a function of torch is run, compiled if that goes.
CHILD = """
import sys, torch
print(torch.compile(lambda x: x + 1)(torch.ones(2)).tolist())
print("torch._inductor.compile_fx" in sys.modules)
"""
JITERATED = "template <typename T> T twice(T x) { return x + x; }"
PTX = b""".version 7.0
.target sm_80
.address_size 64
.visible .entry nothing() { ret; }
"""


def main() -> None:
    cast, *devices = sys.argv[1:]
    seal(Path(cast))
    tried: dict[str, Callable[[], Any]] = {
        "torch.compile": _torch_compile,
        "torch.compile as a decorator": _torch_compile_decorating,
        "torch._dynamo.optimize": _dynamo,
        "inductor": lambda: importlib.import_module("torch._inductor.compile_fx"),
        "cpp_extension": lambda: importlib.import_module("torch.utils.cpp_extension"),
        "jiterator": _jiterator,
        "stray Triton kernel": _stray_kernel,
        "gcc": lambda: subprocess.run(["gcc", "--version"], check=False),
        "nvcc in a shell": lambda: subprocess.run("nvcc --version", shell=True, check=False),
        "os.system": lambda: os.system("ptxas --version"),
        "a program that compiles nothing": lambda: subprocess.run(["true"], check=True).returncode,
        "child": _child,
    }
    if not devices:
        from kernels.cast import stub_driver
        from kernels.cast.architectures import architecture_named

        stub_driver.activate(architecture_named("sm_90"))
    else:
        import torch

        torch.zeros(1, device=devices[0])
        tried |= {"PTX": _ptx, "NVRTC": _native}
    before = mapped.compilers()
    found = {name: _outcome(way) for name, way in tried.items()}
    now = mapped.compilers()
    print(json.dumps({"found": found, "mapped": sorted(now), "compiled": mapped.that_compiled(before, now)}))


def _outcome(way: Callable[[], Any]) -> dict[str, Any]:
    from kernels.seal import NotCast

    try:
        return {"returned": way()}
    except Exception as error:  # noqa: BLE001 - which one is what is asked
        return {"raised": type(error).__name__, "not_cast": isinstance(error, NotCast), "message": str(error)}


def _torch_compile() -> Any:
    import torch

    return torch.compile(lambda x: x + 1)(torch.ones(2)).tolist()


def _torch_compile_decorating() -> Any:
    import torch

    @torch.compile(dynamic=True)
    def function(x: Any) -> Any:
        return x + 1

    return function(torch.ones(2)).tolist()


def _dynamo() -> Any:
    import torch._dynamo

    return torch._dynamo.optimize("inductor")(lambda x: x + 1)(torch.ones(2)).tolist()


def _jiterator() -> Any:
    import torch

    return str(torch.cuda.jiterator._create_jit_fn(JITERATED))


def _stray_kernel() -> None:
    """One that no op declares, launched as Triton's users do."""
    from tests.cast.odd_kernels import well_kernel

    well_kernel[(1,)](_pointer(), 4, BLOCK=16)


def _pointer() -> Any:
    import torch

    return torch.zeros(16, device="cuda" if torch.cuda.is_available() else "cpu")


def _child() -> list[str]:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    return done.stdout.split("\n")


def _native() -> list[float]:
    """Torch's own code has NVRTC compile this function. No guard sees it; what is mapped afterwards tells."""
    import torch

    return torch.special.bessel_j0(torch.zeros(2, device="cuda")).tolist()


def _ptx() -> int:
    """What the driver answers to code that it would have to compile: 0 when it did, 223 when it may not
    (CUDA_ERROR_JIT_COMPILATION_DISABLED)."""
    import ctypes

    module = ctypes.c_void_p()
    return int(ctypes.CDLL("libcuda.so.1").cuModuleLoadData(ctypes.byref(module), PTX + b"\0"))


if __name__ == "__main__":
    main()
