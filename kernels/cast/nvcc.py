"""The CUDA compiler that builds FlashInfer's modules: where it is, whether it supports an architecture, and which other
parts of CUDA a module needs."""

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
# Header of a CUDA library -> the pip package that contains it, in the versions of torch 2.13.
_PACKAGES = {"cublasLt.h": "nvidia-cublas==13.1.1.3", "curand_kernel.h": "nvidia-curand==10.4.0.35"}


class Toolkit(NamedTuple):
    """`home` is the folder with `bin/nvcc`."""

    home: Path
    version: tuple[int, int]

    @property
    def release(self) -> str:
        return "{}.{}".format(*self.version)


def find(architecture: Architecture, environ: Mapping[str, str] = os.environ) -> Toolkit:
    """The first compiler in $CUDA_HOME, $CUDA_PATH, $PATH, /usr/local/cuda and pip's packages.

    Raises:
        CastError: there is none, it does not respond, or it is too old for `architecture`.
    """
    nvcc = next((place for place in _places(environ) if os.access(place, os.X_OK)), None)
    if nvcc is None:
        raise CastError(
            "cast-no-nvcc",
            "FlashInfer is installed, but not nvcc, which builds its modules.",
            "Install nvcc, name its folder with CUDA_HOME, or skip those modules with --triton-only.",
            _INSTALL,
        )
    version = _version(nvcc)
    if version < architecture.nvcc:
        raise CastError(
            "cast-nvcc-too-old",
            f"{nvcc} is version {version[0]}.{version[1]}, but {architecture.name} needs "
            f"{architecture.nvcc[0]}.{architecture.nvcc[1]} or newer.",
            "Install a newer one, or name its folder with CUDA_HOME.",
            _INSTALL,
        )
    return Toolkit(_home(nvcc), version)


def include_folders(toolkit: Toolkit, headers: tuple[str, ...]) -> list[Path]:
    """The folders of `headers` that the compiler does not search by default. Raises CastError for a missing header."""
    own = toolkit.home / "include"
    found: dict[Path, None] = {}
    for header in headers:
        place = next((folder for folder in (own, *_packaged("include")) if (folder / header).exists()), None)
        if place is None:
            package = _PACKAGES[header]
            raise CastError(
                "cast-no-cuda-header",
                f"A FlashInfer module includes {header}, which is neither in {own} nor in a package of this Python.",
                "Install the package that contains it.",
                f"pip install --no-deps {package}",
            )
        if place != own:
            found[place] = None
    return list(found)


def link_folder(toolkit: Toolkit, compiler: str, folder: Path) -> Path:
    """Put into `folder` what a module is linked against: the CUDA runtime under its plain name, which pip's packages
    lack, and an empty stub of the driver's library, which a machine without a GPU lacks."""
    folder.mkdir(parents=True, exist_ok=True)
    runtime = next(_runtimes(toolkit), None)
    if runtime is None:
        raise CastError(
            "cast-no-cudart",
            f"A FlashInfer module is linked against libcudart.so, which is not in {toolkit.home}.",
            "Install the CUDA runtime.",
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
    """Within pip's packages, newest CUDA first."""
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
            f"{nvcc} did not report its version. It printed: {answer.strip()[:200]!r}.",
            "Name the folder of a working CUDA compiler with CUDA_HOME.",
        )
    return int(match[1]), int(match[2])


def _home(nvcc: Path) -> Path:
    """nvcc's own answer, because the nvcc on the PATH may be a script that calls one elsewhere."""
    answer = _ask(nvcc, "--dryrun", "-x", "cu", os.devnull).stderr
    match = re.search(r"^#\$ TOP=(.+)$", answer, re.MULTILINE)
    return Path(match[1]).resolve() if match else nvcc.resolve().parents[1]


def _ask(nvcc: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run([str(nvcc), *arguments], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CastError(
            "cast-nvcc-unknown",
            f"{nvcc} could not be run: {error}.",
            "Name the folder of a working CUDA compiler with CUDA_HOME.",
        ) from error
