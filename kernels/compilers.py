"""What could compile GPU code in a running process, and how a sealed process refuses it.

`kernels/cast/sealed_cache.py` stops Triton. This module stops the rest: torch's compilers, libraries that contain one,
and compiler programs. Child processes inherit `ENVIRONMENT`, which keeps torch, numba, the driver and FlashInfer from
compiling there too. No guard in Python can see native code that calls NVRTC; `kernels/cast/mapped.py` detects that.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Final, NoReturn

from kernels.seal import NotCast

# Turns off compiling, and caches of compiled code, here and in child processes.
ENVIRONMENT: Final = {
    "CC": "/bin/false",
    "CXX": "/bin/false",
    "CUDA_CACHE_DISABLE": "1",
    "CUDA_DISABLE_PTX_JIT": "1",
    "FLASHINFER_DISABLE_JIT": "1",
    "NUMBA_DISABLE_CUDA": "1",
    "NUMBA_DISABLE_JIT": "1",
    "PYTORCH_JIT": "0",
    "TORCHDYNAMO_DISABLE": "1",
    "TORCH_COMPILE_DISABLE": "1",
}

# Modules that compile for a GPU, or exist only for that.
MODULES: Final = (
    "cuda.bindings.nvrtc",
    "cuda.nvrtc",
    "cupy",
    "deep_gemm",
    "jax",
    "numba",
    "pycuda",
    "taichi",
    "tilelang",
    "torch._inductor.compile_fx",
    "torch.utils.cpp_extension",
    "tvm",
    "warp",
)

# Likewise; but libraries that we run, here FlashInfer, import them where they find them, and do without where they do
# not. So they are not found.
HIDDEN: Final = ("cutlass",)  # CuTe's language, which compiles on the first call

# Functions of torch that compile, as `module:name`. Its other paths go through one of these or a module above.
FUNCTIONS: Final = (
    "torch:compile",
    "torch.cuda:_compile_kernel",
    "torch.cuda.jiterator:_create_jit_fn",
    "torch.cuda.jiterator:_create_multi_output_jit_fn",
)

_PROGRAM = re.compile(
    r"(\w+-linux-gnu-)?(cc|c\+\+|gcc|g\+\+|clang|clang\+\+|cc1|cc1plus|nvcc|cicc|ptxas|ptxas-blackwell|ninja)(-[\d.]+)?"
)
_SHELLS = ("sh", "bash", "dash")

_refused = False


class RefusedImportError(ImportError, NotCast):
    """A sealed engine tried to import a library that compiles."""


def refuse() -> None:
    """From now on, in this process and its children. This cannot be undone."""
    global _refused
    os.environ.update(ENVIRONMENT)
    if _refused:
        return
    _refused = True
    import torch

    for name in FUNCTIONS:
        _replace(name)
    if dynamo := sys.modules.get("torch._dynamo.config"):  # else it reads the environment when it is imported
        vars(dynamo)["disable"] = True
    _stop_fusing(torch)
    for name in HIDDEN:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # Python's convention for a module that must not be imported
    sys.meta_path.insert(0, _Refusing())
    sys.addaudithook(_stop_programs)


def _replace(name: str) -> None:
    from importlib import import_module

    module, _, function = name.partition(":")
    owner = import_module(module)
    if hasattr(owner, function):  # every version of torch has some of these
        setattr(owner, function, _refusing(f"{module}.{function.lstrip('_')}"))


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refused(*_: Any, **__: Any) -> NoReturn:
        raise NotCast(
            f"{name} was called, which compiles, and a sealed engine compiles nothing. Remove the call from the engine."
        )

    return refused


def _stop_fusing(torch: ModuleType) -> None:
    """TorchScript is off, and what was scripted before runs as it is: its fusers would ask NVRTC."""
    torch.jit._state.disable()
    for name in ("_jit_override_can_fuse_on_gpu", "_jit_override_can_fuse_on_cpu", "_jit_set_texpr_fuser_enabled"):
        if hasattr(torch._C, name):
            getattr(torch._C, name)(False)


class _Refusing(MetaPathFinder, Loader):
    """Runs before all other finders. A mere check whether one of `MODULES` is installed gets the true answer."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in MODULES or PathFinder.find_spec(fullname, path) is None:
            return None
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> NoReturn:
        raise RefusedImportError(
            f"{spec.name} compiles at run time and cannot be imported: a sealed engine compiles nothing. Remove the "
            "import from the engine.",
            name=spec.name,
        )

    def exec_module(self, module: ModuleType) -> None:
        raise AssertionError("no such module is ever made")


def _stop_programs(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"):
        return
    words = _words(event, arguments)
    if words and os.path.basename(words[0]) in _SHELLS and "-c" in words[1:-1]:
        words = _split(words[words.index("-c") + 1])
    if words and _PROGRAM.fullmatch(os.path.basename(words[0])):
        raise NotCast(f"The compiler {words[0]} cannot be started: a sealed engine compiles nothing.")


def _words(event: str, arguments: tuple[Any, ...]) -> list[str]:
    """The program and its arguments."""
    if event == "os.system":
        return _split(os.fsdecode(arguments[0]))
    command = arguments[1]
    words = [command] if isinstance(command, str | bytes | os.PathLike) else list(command)
    return [os.fsdecode(word) for word in words]


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # an open quotation mark: the shell will say so
        return command.split()
