"""A driver for a GPU that is not there: a launch does everything except run the kernel."""

from __future__ import annotations

from typing import Any

from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaDriver, CudaLauncher, CudaUtils
from triton.runtime import build
from triton.runtime.driver import driver

from kernels.cast.architectures import Architecture

_WARP = 32
_MOST_THREADS = 1024


class StubDriver(CudaDriver):  # type: ignore[misc]  # Triton has no types
    """Claims to drive `architecture`."""

    def __init__(self, architecture: Architecture) -> None:  # not CudaDriver's, which looks for a GPU
        self._architecture = architecture
        self.utils = _Utils(architecture)
        self.launcher_cls = _Launcher

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._architecture.number, _WARP)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_capability(self, device: int) -> tuple[int, int]:
        return self._architecture.capability


class _Launcher(CudaLauncher):  # type: ignore[misc]  # Triton has no types
    """Looks up its host stub like any launcher, and stops before calling it."""

    def __call__(self, *_: object, **__: object) -> None:
        pass


class _Nothing:
    """Has every function; none does anything."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class _Utils(_Nothing):
    def __init__(self, architecture: Architecture) -> None:
        self._shared_memory = architecture.shared_memory

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": self._shared_memory}

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[None, None, int, int, int]:
        return None, None, 0, 0, _MOST_THREADS


def activate(architecture: Architecture) -> None:
    """Direct this process's launches to `architecture`. Host stubs are looked up or built, but not loaded, because that
    needs the driver's library."""
    build._load_module_from_path = lambda name, path: _Nothing()
    driver.set_active(StubDriver(architecture))
    CudaUtils()
