"""The compiled kernels: which there are, which one this processor can run, and its functions. Imports no torch."""

from __future__ import annotations

import ctypes
import hashlib
import platform
from functools import cache
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
FOLDER: Final = HERE / "compiled"
SOURCES: Final = tuple(sorted([*HERE.glob("*.cpp"), *HERE.glob("*.h")]))
NAME: Final = "cpp-kernels"
"""What backends call the library in their requirements, beside `kernels.libraries.DISTRIBUTIONS`."""
PRODUCTS: Final = "cpp-products"
"""The same for those of linear layers, which are only in the library of one instruction set."""

COMPILES: Final = "python -m kernels.cpu.build"

# Characters of /proc/cpuinfo: the rest repeats them for every core, and takes long to be written on a large machine.
_FIRST_CORE: Final = 16 * 1024

# Options of the compiler and flags of the processor (as in /proc/cpuinfo, where "abm" is LZCNT), the best first.
_V3: Final = ("avx2", "fma", "bmi1", "bmi2", "f16c", "movbe", "abm")
_V4: Final = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_X86: Final = {
    "avx512-bf16": (("-march=x86-64-v4", "-mavx512bf16"), (*_V4, "avx512_bf16")),
    "avx512": (("-march=x86-64-v4",), _V4),
    "avx2": (("-march=x86-64-v3",), _V3),
}
INSTRUCTION_SETS: Final = _X86 if platform.machine() in ("x86_64", "AMD64") else {}

_INT, _FLOAT, _AT = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
_PARAMETERS: Final = {
    "rms_norm": (_INT, *[_AT] * 4, _INT, _INT, _FLOAT, _FLOAT, _INT),
    "gated_activation": (_INT, _AT, _AT, _INT, _INT, _INT, _FLOAT, _INT),
    "rotary_cache": (
        _INT, _AT, _AT, _AT, _INT, _INT, _INT, _AT, _AT, _INT, _AT, _AT, _AT, _INT, _INT, _INT, _INT, _AT, _AT, _FLOAT,
        _FLOAT, _INT, _INT,
    ),
    "pack": (_AT, _AT, _INT, _INT, _INT),
    "linear": (*[_AT] * 4, *[_INT] * 6),
    "paged_attention": (
        _INT, *[_AT] * 4, *[_INT] * 4, *[_AT] * 3, *[_INT] * 6, _FLOAT, _INT, _AT, _FLOAT, _INT,
    ),
}  # fmt: skip


@cache
def library_path(name: str, folder: Path = FOLDER) -> Path:
    """Where the library of that instruction set lies, compiled from the sources as they are, with the options as they
    are."""
    digest = hashlib.sha256(repr(INSTRUCTION_SETS[name][0]).encode())
    for source in (*SOURCES, HERE / "build.py"):
        digest.update(source.read_bytes())
    return folder / f"{name}-{digest.hexdigest()[:12]}.so"


class _Threads:
    count = 1


def threads() -> int:
    """On how many threads a call may compute, the caller's among them."""
    return _Threads.count


def use_threads(count: int) -> None:
    """From now on, in this process."""
    _Threads.count = count


@cache
def usable() -> str:
    """The instruction set of the best library that is there and that this processor can run; "" without one."""
    return next((name for name in runnable() if library_path(name).exists()), "")


@cache
def _flags() -> frozenset[str]:
    try:
        with Path("/proc/cpuinfo").open(errors="replace") as file:
            lines = file.read(_FIRST_CORE).splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), ()))


def found() -> dict[str, str]:
    """What of `NAME` and `PRODUCTS` is usable here, with its instruction set."""
    name = usable()
    return {NAME: name} | ({PRODUCTS: name} if name == "avx512-bf16" else {}) if name else {}


@cache
def functions() -> ctypes.CDLL:
    """Those of the best library, `ingot_rms_norm` and so on, with the types of their parameters.

    Raises:
        ImportError: there is none, or it cannot be opened.
    """
    name = usable()
    if not name:
        raise ImportError(f"the kernels for this processor are not compiled: {COMPILES}")
    return open_library(name)


def open_library(name: str) -> ctypes.CDLL:
    """That of an instruction set, see `functions`."""
    path = library_path(name)
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"{path} cannot be opened: {error}") from error
    for op, parameters in _PARAMETERS.items():
        if hasattr(library, f"ingot_{op}"):  # not all are of every instruction set
            function = getattr(library, f"ingot_{op}")
            function.argtypes, function.restype = parameters, None
    return library


def runnable() -> list[str]:
    """The instruction sets that this processor has, the best first."""
    has = _flags()
    return [name for name, (_, needed) in INSTRUCTION_SETS.items() if has.issuperset(needed)]
