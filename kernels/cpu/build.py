"""`python -m kernels.cpu.build`: compiles the kernels for every instruction set that this kind of processor may have.

It takes seconds, and needs a C++ compiler: `c++`, or what CXX names. Libraries that are there already for these sources
stay as they are; those of older sources are removed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kernels.cpu.library import FOLDER, INSTRUCTION_SETS, SOURCES, library_path

# C++20 for atomics that wait. NaN and infinity stay what they are; products and sums may be fused.
FLAGS: Final = (
    "-std=c++20", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi", "-fPIC",
    "-shared", "-pthread", "-static-libstdc++", "-static-libgcc", "-s",
    "-Wl,--exclude-libs,ALL",  # another libstdc++ of the process has the same names
)  # fmt: skip
INSTALLS_ONE: Final = "sudo apt-get install --yes g++"


class CompilerError(RuntimeError):
    """There is no compiler, or it refused the sources."""


def build(folder: Path = FOLDER) -> list[Path]:
    """Those that were missing, compiled side by side into `folder`; none where this processor is of a kind that the
    kernels are not written for.

    Raises:
        CompilerError: see there.
    """
    wanted = {library_path(name, folder): options for name, (options, _) in INSTRUCTION_SETS.items()}
    for stale in set(folder.glob("*.so")) - set(wanted):
        stale.unlink(missing_ok=True)
    missing = {path: options for path, options in wanted.items() if not path.exists()}
    if not missing:
        return []
    compiler = shlex.split(os.environ.get("CXX", "")) or ["c++"]
    if shutil.which(compiler[0]) is None:
        raise CompilerError(
            f"there is no C++ compiler {compiler[0]}. Install one ({INSTALLS_ONE}), or name yours in CXX."
        )
    sources = [str(source) for source in SOURCES if source.suffix == ".cpp"]
    started = []
    for path, options in missing.items():
        made = path.with_suffix(f".{os.getpid()}")
        command = [*compiler, *FLAGS, *options, *sources, "-o", str(made)]
        started.append((path, made, subprocess.Popen(command, stderr=subprocess.PIPE, text=True)))
    failed = []
    for path, made, process in started:
        said = process.communicate()[1]
        if process.returncode == 0:
            made.replace(path)  # whole or not at all
        else:
            made.unlink(missing_ok=True)
            failed.append(f"{compiler[0]} ended with {process.returncode} for {path.name}:\n{said[-2000:]}")
    if failed:
        raise CompilerError("\n".join(failed))
    return list(missing)


def main(arguments: Sequence[str] = ()) -> int:
    folder = Path(arguments[0]) if arguments else FOLDER
    try:
        folder.mkdir(exist_ok=True)
        made = build(folder)
    except (CompilerError, OSError) as error:  # or the folder cannot be written
        print(
            f"The kernels for this processor were not compiled, so torch computes, more slowly: {error}",
            file=sys.stderr,
        )
        return 1
    if not INSTRUCTION_SETS:
        print("There are no kernels in C++ for this kind of processor: torch computes on it.")
    if made:
        print(f"Compiled the kernels for processors: {', '.join(INSTRUCTION_SETS)}.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
