"""Makes a cast: passes the variants of a plan to worker processes, keeps a journal, and writes the manifest last.

However it ends early, finished kernels stay: the next cast into the same folder reuses them.
"""

from __future__ import annotations

import errno
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec import structs

from kernels.cast import check, environment, flashinfer, host_compiler, libstdcxx, manifest, nvcc, plan
from kernels.cast.architectures import Architecture
from kernels.cast.errors import CastError
from kernels.cast.files import FLASHINFER, TRITON, library_of
from kernels.cast.folder import Head, Journal, alone_in, drop_folders, is_unchanged, open_folder, record_files
from kernels.cast.manifest import CastVariant, Manifest, Versions
from kernels.cast.words import Answer
from kernels.cast.worker_process import WorkerProcess
from kernels.modules import Module
from kernels.variants import Variant

# Disk space of a compiled variant, averaged over all ops: `ingot cast` prints both figures.
BYTES_PER_VARIANT = 64 * 1024
# Temporary files of one compiler: all stages of one kernel, and the C compiler's files.
SCRATCH_PER_JOB = 2 * 1024 * 1024
# With less free space than this, any compiler error is taken for a full disk.
_ROOM = 64 * 1024


@dataclass(frozen=True)
class Order:
    """What to cast, and where. `models` are the names of the profiles it is limited to, and `profiles` how the command
    named them; `triton_only` is the command's flag."""

    architecture: Architecture
    variants: Sequence[Variant]
    modules: Sequence[Module]  # of FlashInfer
    folder: Path
    ingot: str  # its version
    models: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()
    triton_only: bool = False
    jobs: int = 1


@dataclass
class Outcome:
    """`manifest` is set if everything compiled; `failed` maps names of variants to their errors, and `kept` counts the
    variants that were already there."""

    manifest: Manifest | None = None
    failed: dict[str, str] = field(default_factory=dict)
    kept: int = 0


def extending(order: Order) -> Order:
    """`order` plus whatever a complete cast in its folder already holds: casting again removes nothing."""
    try:
        there = check.read(order.folder)
    except CastError:  # there is none, or build reports what is wrong with it
        return order
    if there.architecture != order.architecture.name or not order.models:
        return order
    held = {variant.name for variant in there.variants}
    declared = plan.triton_variants(order.architecture.number)
    besides = [variant for variant in declared if not there.models or variant.name in held]
    models = (*there.models, *(name for name in order.models if name not in there.models)) if there.models else ()
    return replace(order, variants=tuple(dict.fromkeys((*besides, *order.variants))), models=models)


def build(order: Order, moved: Callable[[str], None]) -> Outcome:
    """Cast; `moved` is called with the name of each variant and module when it is done or has failed.

    Raises:
        CastError: the folder holds something else or is in use by another cast; a compiler is missing; the disk is
            full.
        OSError: the folder cannot be written.
    """
    started = time.monotonic()
    compiler = host_compiler.find()
    versions, source = _versions(order), environment.kernel_source()
    head = Head(
        architecture=order.architecture.name,
        versions=versions,
        planned=len(order.variants),
        profiles=order.profiles,
        triton_only=order.triton_only,
    )
    try:
        with alone_in(order.folder), open_folder(order.folder, head) as journal:
            _require_space(order, len(journal))
            outcome, done = _compile_all(order, compiler, journal, moved)
            if outcome.failed:
                return outcome
            keep = _modules_besides(order, versions, journal.before)
            modules = _build_modules(order, keep, moved)
            versions = _with_modules(order, versions, journal.before, keep, modules)
            made = tuple(done[variant.name] for variant in order.variants)
            found = Manifest(
                architecture=order.architecture.name,
                versions=versions,
                source=source,
                models=order.models,
                variants=made,
                flashinfer=modules,
                files=tuple(record_files(order.folder, made, modules)),
                built=time.time(),
                seconds=round(time.monotonic() - started, 1),
            )
            outcome.manifest = _write(found, journal.before, order.folder)
            journal.drop_all_but({key for variant in made for key in variant.keys})
            journal.remove()
            return outcome
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise _disk_full(order, 0) from error


def _compile_all(
    order: Order, compiler: str, journal: Journal, moved: Callable[[str], None]
) -> tuple[Outcome, dict[str, CastVariant]]:
    outcome = Outcome()
    done: dict[str, CastVariant] = {}
    with _work_folder(order.folder) as work:
        host_compiler.stub_libcuda(compiler, work / "libcuda.so.1")
        for variant, answer in _compile(order, work):
            if answer.disk_full or (answer.error and _free(order.folder) < _ROOM):
                raise _disk_full(order, len(done))
            if answer.variant is None:
                outcome.failed[variant.name] = answer.error
            else:
                done[variant.name] = answer.variant
                outcome.kept += not journal.write(answer.variant)
            moved(variant.name)
    return outcome, done


def _versions(order: Order) -> Versions:
    triton = environment.installed("triton")
    if triton is None:
        raise CastError(
            "cast-no-triton",
            "Triton is not installed. It compiles the kernels.",
            "Install Ingot with the extra `cuda`.",
            "pip install 'ingot[cuda]'",
        )
    return Versions(
        ingot=order.ingot,
        triton=triton,
        triton_build=environment.triton_build(),
        python=environment.python_tag(),
        ptxas=environment.ptxas_version(order.architecture.number),
        libc=environment.libc_version(),
        flashinfer=flashinfer.installed() if order.modules else None,
        tvm_ffi=environment.installed(environment.TVM_FFI) if order.modules else None,
        nvcc=nvcc.find(order.architecture).release if order.modules else None,
    )


def _with_modules(
    order: Order, versions: Versions, before: Manifest | None, keep: tuple[str, ...], modules: tuple[str, ...]
) -> Versions:
    """`versions` with what FlashInfer's `modules` were made with; for modules that are kept, as recorded before."""
    if before is not None and keep:
        made = before.versions
        versions = structs.replace(versions, flashinfer=made.flashinfer, tvm_ffi=made.tvm_ffi, nvcc=made.nvcc)
    libraries = ((order.folder / library_of(module)).read_bytes() for module in modules)
    return structs.replace(versions, libstdcxx=libstdcxx.newest(libraries) or None)


def _write(found: Manifest, before: Manifest | None, folder: Path) -> Manifest:
    """Replace the manifest, unless it says the same."""
    if before is not None:
        same = structs.replace(found, built=before.built, seconds=before.seconds, digest=before.digest)
        if same == before:
            return before
    return manifest.write(found, folder)


def _modules_besides(order: Order, versions: Versions, before: Manifest | None) -> tuple[str, ...]:
    """FlashInfer's modules that the cast already holds and this order does not name. Modules of another FlashInfer
    version cannot be kept beside new ones."""
    if before is None:
        return ()
    made, now = before.versions, versions
    if order.modules and (made.flashinfer, made.tvm_ffi) != (now.flashinfer, now.tvm_ffi):
        return ()
    wanted = {module.name for module in order.modules}
    changed = {
        file.path.split("/")[1]
        for file in before.files
        if file.path.startswith(f"{FLASHINFER}/") and not is_unchanged(file, order.folder)
    }
    return tuple(name for name in before.flashinfer if name not in wanted | changed)


def _build_modules(order: Order, keep: tuple[str, ...], moved: Callable[[str], None]) -> tuple[str, ...]:
    if not order.modules:
        drop_folders(order.folder / FLASHINFER, but=set(keep))
        return keep
    return flashinfer.build(
        order.folder, order.architecture, order.modules, order.jobs, lambda module: moved(module.name), keep
    )


def _compile(order: Order, work: Path) -> Iterator[tuple[Variant, Answer]]:
    """Every variant with its answer, as they finish. The workers end with this."""
    waiting: queue.SimpleQueue[Variant] = queue.SimpleQueue()
    answers: queue.SimpleQueue[tuple[Variant, Answer]] = queue.SimpleQueue()
    for variant in order.variants:
        waiting.put(variant)
    jobs = min(order.jobs, len(order.variants))
    workers = [WorkerProcess(order.architecture, order.folder / TRITON, work, number) for number in range(jobs)]
    threads = [threading.Thread(target=_serve, args=(worker, waiting, answers), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        for _ in order.variants:
            yield answers.get()
    finally:
        while not waiting.empty():
            waiting.get()
        for worker in workers:
            worker.end()
        for thread in threads:
            thread.join()


def _serve(
    worker: WorkerProcess,
    waiting: queue.SimpleQueue[Variant],
    answers: queue.SimpleQueue[tuple[Variant, Answer]],
) -> None:
    while True:
        try:
            variant = waiting.get_nowait()
        except queue.Empty:
            return
        answers.put((variant, worker.compile(variant)))


@contextmanager
def _work_folder(folder: Path) -> Iterator[Path]:
    """For files that are not part of a cast: logs, partial files, the stub library to link against."""
    work = folder / ".work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(exist_ok=True)  # a worker of a killed cast may still be writing there
    try:
        yield Path(tempfile.mkdtemp(dir=work))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _require_space(order: Order, kept: int) -> None:
    if _free(order.folder) < _needed(order, kept):
        raise _disk_full(order, kept)


def _needed(order: Order, done: int) -> int:
    missing = max(len(order.variants) - done, 0)
    return missing * BYTES_PER_VARIANT + min(order.jobs, missing) * SCRATCH_PER_JOB


def _disk_full(order: Order, done: int) -> CastError:
    return CastError(
        "cast-disk-full",
        f"{order.folder} has {_free(order.folder) / 1e6:,.1f} MB free; the {len(order.variants) - done:,} kernels "
        f"still to be cast need about {_needed(order, done) / 1e6:,.1f} MB.",
        "Free disk space, or cast into a folder on another disk. Finished kernels are kept.",
    )
