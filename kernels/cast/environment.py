"""What determines a kernel's key besides the kernel: versions and environment. Casting and sealing both read them from
here, so that they agree. Imports neither torch nor Triton."""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import subprocess
import sysconfig
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from kernels.cast import source
from kernels.cast.errors import CastError

# What FlashInfer's modules are loaded by.
TVM_FFI = "apache-tvm-ffi"

# Without it, the place of the source files is part of every kernel.
PINNED = {"TRITON_DISABLE_LINE_INFO": "1"}
# Any other variable with these prefixes or names changes how Triton compiles, or where it looks ...
_PREFIXES = ("TRITON_", "MLIR_", "LLVM_", "AMDGCN_", "NVPTX_")
_NAMES = (
    "CUDA_FORCE_JIT", "CUDA_FORCE_PTX_JIT",  # the driver would pass over compiled kernels
    "DISABLE_LLVM_OPT", "DISABLE_MMA_V3", "DISABLE_MMA_V5", "DISABLE_PTXAS_OPT", "PTXAS_OPTIONS", "USE_IR_LOC",
)  # fmt: skip
# ... except these, which a seal sets itself or ignores.
_HARMLESS = ("TRITON_CACHE_DIR", "TRITON_HOME", "TRITON_LIBCUDA_PATH", "TRITON_PRINT_AUTOTUNING")


def is_ours(name: str) -> bool:
    """Whether a variable changes how kernels are compiled or found."""
    return name.startswith(_PREFIXES) or name in _NAMES


def conflicts(environ: Mapping[str, str]) -> list[str]:
    """The variables, as `NAME=value`, under which no kernel of a cast would be found."""
    return sorted(
        f"{name}={value}"
        for name, value in environ.items()
        if is_ours(name) and name not in _HARMLESS and PINNED.get(name) != value
    )


def without_conflicts(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without those variables, as kernels are cast in it."""
    return {name: value for name, value in environ.items() if not is_ours(name)} | PINNED


def python_tag() -> str:
    """The platform extension modules must be built for, such as "cpython-312-x86_64-linux-gnu"."""
    suffix: str = sysconfig.get_config_var("EXT_SUFFIX")
    return suffix.strip(".").removesuffix(".so")


def libc_version() -> str:
    return " ".join(platform.libc_ver())


def installed(distribution: str) -> str | None:
    """The version that pip installed; None without one."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def triton_build() -> str:
    """A digest of Triton's files as pip recorded their hashes: two builds of one version differ in it, and reading the
    record takes milliseconds, where hashing 400 MB of compiler takes a second. Empty where there is no record."""
    try:
        files = metadata.files("triton")
    except metadata.PackageNotFoundError:
        files = None
    hashes = sorted(f"{file}={file.hash.value}" for file in files or () if _is_code(str(file)) and file.hash)
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest() if hashes else ""


def _is_code(path: str) -> bool:
    return path.startswith("triton/") and path.endswith((".py", ".so", ".c", ".h", ".bc", "/ptxas", "/ptxas-blackwell"))


def kernel_source() -> str:
    """A digest of the files of this Ingot that hold kernels or constants used by kernels: if their text changes, so do
    the kernels' keys."""
    room = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in source.files(room):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(room).as_posix()} {len(text)} ".encode() + text)
    return digest.hexdigest()


def triton_folder() -> Path | None:
    """The folder of Triton's package; None if it is missing, whatever pip has recorded."""
    triton = importlib.util.find_spec("triton")
    return Path(triton.origin).parent if triton is not None and triton.origin is not None else None


def triton_is_gone() -> CastError:
    return CastError(
        "cast-triton",
        f"pip lists Triton {installed('triton')}, but its package is missing.",
        "Reinstall it.",
        f"pip install --force-reinstall --no-deps triton=={installed('triton')}",
    )


def ptxas_version(arch: int) -> str:
    """The version of Triton's own ptxas, which Triton makes part of every key.

    Raises:
        CastError: Triton or its ptxas is missing.
    """
    triton = triton_folder()
    if triton is None:
        raise triton_is_gone()
    program = triton / "backends" / "nvidia" / "bin" / ("ptxas-blackwell" if arch >= 100 else "ptxas")
    try:
        return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it ended with status {error.returncode}"
        raise CastError(
            "cast-triton",
            f"Cannot start Triton's assembler {program}: {why}.",
            "Reinstall Triton.",
            f"pip install --force-reinstall --no-deps triton=={installed('triton')}",
        ) from error
