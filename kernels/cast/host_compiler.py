"""Builds Triton's host stubs (small extension modules) without the driver's library, with the same bytes
everywhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

from kernels.cast.errors import CastError

_COMPILERS = ("gcc", "cc", "clang")


def find() -> str:
    """The C compiler: $CC, or the first one found. Raises CastError without a compiler or Python's headers."""
    wanted = os.environ.get("CC")
    compiler = next(filter(None, map(shutil.which, [wanted] if wanted else _COMPILERS)), None)
    if compiler is None:
        named = (
            f"The compiler named in CC={wanted} was not found"
            if wanted
            else f"No C compiler was found (tried {', '.join(_COMPILERS)})"
        )
        raise CastError(
            "cast-no-compiler",
            f"{named}. A cast needs one for the parts of a kernel that run on the host.",
            "Install one, or name it with CC.",
            "apt-get install gcc libc6-dev",
        )
    header = _python_headers() / "Python.h"
    if not header.exists():
        raise CastError(
            "cast-no-headers",
            f"{header} is missing. A cast needs Python's headers.",
            "Install the development package of this Python.",
            "apt-get install python3-dev",
        )
    return compiler


def stub_libcuda(compiler: str, library: Path) -> None:
    """Make `library` an empty libcuda.so.1 to link against; the result loads the real one at run time."""
    _run(
        [compiler, "-shared", "-nostdlib", "-Wl,-soname,libcuda.so.1", "-x", "c", os.devnull, "-o", str(library)],
        library.parent, library.name,
    )  # fmt: skip


def compile_stub(
    name: str, source: str, folder: str, library_dirs: list[str], include_dirs: list[str], libraries: list[str]
) -> str:
    """What Triton calls to build one; see `triton.knobs.build.impl`."""
    module = Path(folder, name + sysconfig.get_config_var("EXT_SUFFIX"))
    includes = [*include_dirs, folder, _python_headers()]
    # The source by its bare name and no build id: otherwise the temporary folder's name becomes part of the module. A
    # linker that drops unused libraries by default would drop the empty libcuda.
    command = [
        find(), Path(source).name, "-O2", "-shared", "-fPIC", "-Wno-psabi", "-o", str(module),
        *(f"-I{place}" for place in includes), *(f"-L{place}" for place in library_dirs),
        "-Wl,--build-id=none", "-Wl,--no-as-needed", *(f"-l:{library}" for library in libraries),
    ]  # fmt: skip
    _run(command, Path(folder), name)
    return str(module)


def _python_headers() -> Path:
    """Debian's Python reports /usr/local, where new headers would go, but keeps its own elsewhere."""
    scheme = sysconfig.get_default_scheme()
    return Path(sysconfig.get_path("include", "posix_prefix" if scheme == "posix_local" else scheme))


def _run(command: list[str], folder: Path, what: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CastError(
            "cast-compiler-failed",
            f"{command[0]} could not build {what}: {done.stderr.strip()[-2000:]}",
            "Install a working C compiler with its headers.",
            "apt-get install gcc libc6-dev python3-dev",
        )
