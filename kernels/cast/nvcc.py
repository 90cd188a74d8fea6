"""The CUDA compiler that builds FlashInfer's modules: where it is, whether it knows an architecture, and what else a
module needs of CUDA."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from kernels.cast import host_compiler
from kernels.cast.architectures import Architecture
from kernels.cast.errors import CastError

_INSTALL = (
    "pip install --no-deps nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 "
    "nvidia-cuda-cccl==13.0.85 nvidia-cuda-runtime==13.0.96"
)
# Of CUDA's libraries, header -> the package of the index that brings it, as torch 2.13 takes them.
_PACKAGES = {"cublasLt.h": "nvidia-cublas==13.1.1.3", "curand_kernel.h": "nvidia-curand==10.4.0.35"}


class Toolkit(NamedTuple):
    """`home` is the folder that has `bin/nvcc`."""

    home: Path
    version: tuple[int, int]

    @property
    def release(self) -> str:
        return "{}.{}".format(*self.version)


def find(architecture: Architecture, environ: Mapping[str, str] = os.environ) -> Toolkit:
    """The first compiler of $CUDA_HOME, $CUDA_PATH, $PATH, /usr/local/cuda and the packages of the index.

    Raises:
        CastError: there is none, it does not answer, or it is too old for `architecture`.
    """
    nvcc = next((place for place in _places(environ) if os.access(place, os.X_OK)), None)
    if nvcc is None:
        raise CastError(
            "cast-no-nvcc",
            "FlashInfer is installed, and nvcc, which builds its modules, is not.",
            "Install it, name its folder with CUDA_HOME, or leave those modules out with --triton-only.",
            _INSTALL,
        )
    version = _version(nvcc)
    if version < architecture.nvcc:
        raise CastError(
            "cast-nvcc-too-old",
            f"{nvcc} is nvcc {version[0]}.{version[1]}, and {architecture.name} needs nvcc "
            f"{architecture.nvcc[0]}.{architecture.nvcc[1]} or newer.",
            "Install a newer one, or name its folder with CUDA_HOME.",
            _INSTALL,
        )
    return Toolkit(_home(nvcc), version)


def include_folders(toolkit: Toolkit, headers: tuple[str, ...]) -> list[Path]:
    """Where `headers` are, as far as the compiler does not look there by itself. Raises CastError for a missing one."""
    own = toolkit.home / "include"
    found: dict[Path, None] = {}
    for header in headers:
        place = next((folder for folder in (own, *_packaged("include")) if (folder / header).exists()), None)
        if place is None:
            package = _PACKAGES[header]
            raise CastError(
                "cast-no-cuda-header",
                f"{header} is neither in {own} nor in a package of this Python, and a FlashInfer module includes it.",
                "Install the package that brings it.",
                f"pip install --no-deps {package}",
            )
        if place != own:
            found[place] = None
    return list(found)


def link_folder(toolkit: Toolkit, compiler: str, folder: Path) -> Path:
    """Make `folder` into what a module is linked against: the CUDA runtime under its plain name, which packages lack,
    and an empty stand-in for the driver's library, which a machine without a GPU lacks."""
    folder.mkdir(parents=True, exist_ok=True)
    runtime = next(_runtimes(toolkit), None)
    if runtime is None:
        raise CastError(
            "cast-no-cudart",
            f"There is no libcudart.so in {toolkit.home}, and a FlashInfer module is linked against it.",
            "Install it.",
            f"pip install --no-deps 'nvidia-cuda-runtime>={toolkit.release},<{toolkit.version[0] + 1}'",
        )
    link = folder / "libcudart.so"
    link.unlink(missing_ok=True)
    link.symlink_to(runtime)
    host_compiler.stub_libcuda(compiler, folder / "libcuda.so")
    return folder


def _places(environ: Mapping[str, str]) -> Iterator[Path]:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if environ.get(name):
            yield Path(environ[name], "bin", "nvcc")
    on_path = shutil.which("nvcc", path=environ.get("PATH"))
    if on_path:
        yield Path(on_path)
    yield Path("/usr/local/cuda/bin/nvcc")
    yield from _packaged("bin/nvcc")


def _packaged(relative: str) -> Iterator[Path]:
    """Within the packages of the index, newest CUDA first."""
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations or () if spec else ()
    yield from sorted(
        (place for folder in folders for place in Path(folder).glob(f"cu[0-9]*/{relative}")), reverse=True
    )


def _runtimes(toolkit: Toolkit) -> Iterator[Path]:
    folders = [toolkit.home / "lib64", toolkit.home / "lib", *_packaged("lib")]
    for folder in folders:
        yield from sorted(folder.glob(f"libcudart.so.{toolkit.version[0]}"))


def _version(nvcc: Path) -> tuple[int, int]:
    answer = _ask(nvcc, "--version").stdout
    match = re.search(r"release (\d+)\.(\d+)", answer)
    if match is None:
        raise CastError(
            "cast-nvcc-unknown",
            f"{nvcc} does not say which version it is: {answer.strip()[:200]!r}.",
            "Name the folder of a working CUDA compiler with CUDA_HOME.",
        )
    return int(match[1]), int(match[2])


def _home(nvcc: Path) -> Path:
    """nvcc's own answer: what is on the PATH may be a script that calls it elsewhere."""
    answer = _ask(nvcc, "--dryrun", "-x", "cu", os.devnull).stderr
    match = re.search(r"^#\$ TOP=(.+)$", answer, re.MULTILINE)
    return Path(match[1]).resolve() if match else nvcc.resolve().parents[1]


def _ask(nvcc: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run([str(nvcc), *arguments], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CastError(
            "cast-nvcc-unknown",
            f"{nvcc} does not answer: {error}.",
            "Name the folder of a working CUDA compiler with CUDA_HOME.",
        ) from error
