"""Makes Triton compute the same keys in a cast's worker and in a sealed engine, wherever they run."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

from triton import knobs
from triton.runtime import build, cache, jit

from kernels.cast import environment

# Triton's own function runs the program `file`, if it is installed.
_PLATFORM = ",".join((platform.machine(), platform.system(), "64bit", "ELF"))

# Called with (name, source path, its folder, library folders, include folders, libraries); returns the module's path.
HostCompiler = Callable[..., str]


def pin(cache_manager: type[cache.CacheManager], host_compiler: HostCompiler) -> None:
    """Take kernels from `cache_manager`, and missing host stubs from `host_compiler`."""
    version, digest = environment.installed("triton"), environment.triton_build()
    # Triton would hash all of its own files for its part of the key, 400 MB in each process.
    cache.triton_key = lambda: f"{version}-{digest}"
    build.platform_key = lambda: _PLATFORM
    knobs.cache.manager_class = cache_manager
    knobs.build.impl = host_compiler
    jit.DependenciesFinder._update_hash = _update_hash


_with_what_the_callee_knows = jit.DependenciesFinder._update_hash


def _update_hash(caller: Any, callee: Any) -> None:
    """Triton copies the constants a callee reads before it has looked for them, unless another kernel that calls the
    same function came first: a kernel's key would depend on what the process launched before it."""
    callee.cache_key  # noqa: B018 - looks for them
    _with_what_the_callee_knows(caller, callee)


def pin_ptxas(version: str) -> None:
    """Use this as the output of `ptxas --version`, which is part of every key, instead of running it."""
    setting: Any = knobs.nvidia
    setting.mock_ptx_version = version
