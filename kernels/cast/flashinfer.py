"""Builds FlashInfer's modules for an architecture with FlashInfer's own build functions, on a machine without a GPU.

Each becomes `flashinfer/<module>/<module>.so` in the cast's folder, with a record of what it was made with. A module
that is already there and fits is reused, so that an interrupted cast continues where it stopped.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

import msgspec

from kernels.cast import environment, host_compiler, libstdcxx, nvcc, plan
from kernels.cast.architectures import Architecture
from kernels.cast.errors import CastError
from kernels.cast.files import FLASHINFER
from kernels.cast.folder import drop_folders
from kernels.catalogue import OPS
from kernels.context import Context
from kernels.modules import Module
from kernels.named import load

DISTRIBUTION = "flashinfer-python"

_JOBS_EACH = 4  # compilers that one module keeps busy: most modules have this many large sources
_TAIL = 1500  # characters of a failed build's output that are shown


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """What a module was built with, stored beside it as JSON. `libstdcxx` is the newest interface version of libstdc++
    that it needs."""

    architecture: str
    flashinfer: str
    tvm_ffi: str
    nvcc: str
    libstdcxx: str
    sha256: str


def installed() -> str | None:
    """FlashInfer's version; None if it is not installed, and then there is nothing to build."""
    return environment.installed(DISTRIBUTION)


def planned(arch: int, models: Sequence[Context] = ()) -> tuple[Module, ...]:
    """The modules of every backend that could be chosen on `arch`, for `models` or for common models."""
    found: dict[Module, None] = {}
    libraries = {"flashinfer": installed() or ""}
    capability = divmod(arch, 10)
    for op in OPS:
        for backend in op.backends:
            lowest, highest = backend.min_capability or capability, backend.max_capability or capability
            if backend.engine != "native" or not backend.modules or not lowest <= capability <= highest:
                continue
            for model in plan.served(op, backend, arch, models, libraries) if models else (None,):
                found |= dict.fromkeys(load(backend.modules)(arch, model))
    return tuple(found)


def build(
    folder: Path,
    architecture: Architecture,
    modules: Sequence[Module],
    jobs: int,
    moved: Callable[[Module], None],
    keep: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """Build `modules` into the cast `folder` and remove all others except those named in `keep`; `moved` is called with
    each when it is done.

    Returns:
        The names of all modules in the folder now.

    Raises:
        CastError: the compiler is missing, too old or lacks a header, or a module does not build.
    """
    toolkit = nvcc.find(architecture)
    place = folder / FLASHINFER
    place.mkdir(parents=True, exist_ok=True)
    drop_folders(place, but={*keep, *(module.name for module in modules)})
    version = installed()
    assert version is not None, "whoever plans modules has asked whether FlashInfer is installed"
    tvm_ffi = environment.installed(environment.TVM_FFI) or "none"
    made_with = Recorded(
        architecture=architecture.name,
        flashinfer=version,
        tvm_ffi=tvm_ffi,
        nvcc=toolkit.release,
        libstdcxx="",
        sha256="",
    )
    missing = []
    for module in modules:
        if _fits(place / module.name, made_with):
            moved(module)
        else:
            missing.append(module)
    for module in missing:
        nvcc.include_folders(toolkit, module.headers)  # reported before hours are spent on the others
    with _scratch(architecture) as scratch:
        environ = _environ(toolkit, architecture, missing, scratch, jobs)
        with ThreadPoolExecutor(max(jobs // _JOBS_EACH, 1)) as pool:
            builds = {pool.submit(_build_one, module, environ): module for module in missing}
            try:
                for done in as_completed(builds):
                    _take(builds[done].name, done.result(), place, made_with)
                    moved(builds[done])
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return (*(module.name for module in modules), *keep)


def _fits(place: Path, made_with: Recorded) -> bool:
    library, record = place / f"{place.name}.so", place / "build.json"
    try:
        there = msgspec.json.decode(record.read_bytes(), type=Recorded)
        content = library.read_bytes()
    except (OSError, msgspec.MsgspecError):
        return False
    return there == _record(content, made_with)


def _record(library: bytes, made_with: Recorded) -> Recorded:
    return msgspec.structs.replace(
        made_with, libstdcxx=libstdcxx.newest([library]), sha256=hashlib.sha256(library).hexdigest()
    )


@contextmanager
def _scratch(architecture: Architecture) -> Iterator[Path]:
    """FlashInfer's workspace. Always the same folder, since its name becomes part of nvcc's output. It holds the
    objects of an interrupted module, and is removed after success."""
    place = Path(tempfile.gettempdir(), f"ingot-flashinfer-{os.getuid()}-{architecture.name}")
    place.mkdir(mode=0o700, exist_ok=True)
    if place.is_symlink() or place.stat().st_uid != os.getuid():
        raise CastError(
            "cast-scratch-folder", f"{place} belongs to another user.", "Delete it, or set TMPDIR to another folder."
        )
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield place
    shutil.rmtree(place)


def _environ(
    toolkit: nvcc.Toolkit, architecture: Architecture, modules: Sequence[Module], scratch: Path, jobs: int
) -> dict[str, str]:
    headers = tuple(dict.fromkeys(header for module in modules for header in module.headers))
    includes = nvcc.include_folders(toolkit, headers)
    linked = nvcc.link_folder(toolkit, host_compiler.find(), scratch / "link")
    ours = {name: value for name, value in os.environ.items() if not name.startswith("FLASHINFER_")}
    return ours | {
        "CUDA_HOME": str(toolkit.home),
        "CUDA_VISIBLE_DEVICES": "",
        "FLASHINFER_CUDA_ARCH_LIST": architecture.flashinfer,
        "FLASHINFER_EXTRA_CUDAFLAGS": " ".join((*_alike(toolkit), *(f"-isystem {place}" for place in includes))),
        "FLASHINFER_EXTRA_LDFLAGS": f"-L{linked} -Wl,--build-id=none",
        "FLASHINFER_WORKSPACE_BASE": str(scratch),
        "MAX_JOBS": str(min(jobs, _JOBS_EACH)),
        "PATH": os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath))),  # for ninja
    }


def _alike(toolkit: nvcc.Toolkit) -> Iterator[str]:
    """Makes two builds of one source identical: otherwise the names of temporary files and the compiler's process id
    become part of it. (The name of the source is part of it too, so one seed serves for all.)"""
    yield "--objdir-as-tempdir"
    if toolkit.version >= (13, 0):
        yield "-frandom-seed=ingot"


def _build_one(module: Module, environ: dict[str, str]) -> Path:
    """In a process of its own: FlashInfer reads its environment when it is imported."""
    command = [sys.executable, "-m", "kernels.cast.flashinfer_worker", msgspec.json.encode(module).decode()]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return Path(done.stdout.splitlines()[-1])
    if "No space left on device" in done.stderr:
        raise CastError(
            "cast-disk-full",
            f"The disk of {environ['FLASHINFER_WORKSPACE_BASE']} is full: {module.name} could not be built.",
            "Free disk space, or set TMPDIR to a folder on another disk. Finished modules are kept.",
        )
    raise CastError(
        "cast-module-failed",
        f"FlashInfer could not build {module.name}: {done.stderr.strip()[-_TAIL:]}",
        "Read the compiler's output above; another version of FlashInfer or nvcc may help.",
    )


def _take(name: str, library: Path, place: Path, made_with: Recorded) -> None:
    """Move a module into the cast atomically."""
    partial = place / f"{name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    shutil.copyfile(library, partial / f"{name}.so")
    record = _record((partial / f"{name}.so").read_bytes(), made_with)
    (partial / "build.json").write_bytes(msgspec.json.encode(record))
    shutil.rmtree(place / name, ignore_errors=True)
    partial.rename(place / name)
