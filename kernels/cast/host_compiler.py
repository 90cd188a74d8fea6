"""Building Triton's host stubs (small extension modules) without the driver's library and with the same bytes
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
    """The C compiler: $CC, or the first that there is. Raises CastError without one, or without Python's headers."""
    wanted = os.environ.get("CC")
    compiler = next(filter(None, map(shutil.which, [wanted] if wanted else _COMPILERS)), None)
    if compiler is None:
        named = f"CC={wanted} is not there" if wanted else f"There is none of {', '.join(_COMPILERS)} on this machine"
        raise CastError(
            "cast-no-compiler",
            f"{named}, and a cast needs a C compiler for the parts of a kernel that run on the host.",
            "Install one, or name one with CC.",
            "apt-get install gcc libc6-dev",
        )
    header = _python_headers() / "Python.h"
    if not header.exists():
        raise CastError(
            "cast-no-headers",
            f"{header} is not there, and a cast needs Python's headers.",
            "Install the development package of this Python.",
            "apt-get install python3-dev",
        )
    return compiler


def stub_libcuda(compiler: str, library: Path) -> None:
    """Make `library` an empty libcuda.so.1 to link against: what is linked then asks for the real one where it runs."""
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
    # The source by its bare name and no build id: otherwise the temporary folder's name is part of the module. A
    # linker that is told to drop libraries without a use would drop the empty libcuda.
    command = [
        find(), Path(source).name, "-O2", "-shared", "-fPIC", "-Wno-psabi", "-o", str(module),
        *(f"-I{place}" for place in includes), *(f"-L{place}" for place in library_dirs),
        "-Wl,--build-id=none", "-Wl,--no-as-needed", *(f"-l:{library}" for library in libraries),
    ]  # fmt: skip
    _run(command, Path(folder), name)
    return str(module)


def _python_headers() -> Path:
    """Debian's own Python says that new headers would go to /usr/local, and has its own elsewhere."""
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
