"""The contents of a cast: versions, variants, and every file with its hash. Written last, so that it exists only if
everything else does."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kernels.cast.architectures import ARCHITECTURES
from kernels.cast.errors import CastError
from kernels.cast.files import TRITON, is_path, library_of
from kernels.context import CastSummary

NAME = "manifest.json"
FORMAT = 1
# Bytes of local memory per thread above which a cast warns: values that do not fit into registers are written to memory
# and read back, usually in the innermost loop. Up to this limit it is a few values outside it.
MOST_STACK = 64


class File(msgspec.Struct, frozen=True):
    """`path` is triton/<key>/<file> or flashinfer/<module>/<file>, relative to the cast's folder."""

    path: str
    size: int
    sha256: str

    def __post_init__(self) -> None:
        if not is_path(self.path):
            raise ValueError(f"{self.path!r} is not a path within a cast")


class CastVariant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A compiled variant. `keys` names its folders under `triton/`: the kernel's own first, then those of host stubs.
    `shared` is in bytes per block; `registers` and `stack` (local memory, in bytes) are per thread."""

    op: str
    name: str
    keys: tuple[str, ...]
    shared: int
    registers: int | None = None
    stack: int | None = None


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """What a cast was made with. Triton and Python must be the same where it runs. `triton_build` is a digest of the
    installed files, as pip recorded them; `python` the tag of its extension modules. The last four belong to
    FlashInfer's modules, if there are any: `libstdcxx` is the newest interface version they need."""

    ingot: str
    triton: str
    triton_build: str
    python: str
    ptxas: str
    libc: str
    flashinfer: str | None = None
    tvm_ffi: str | None = None
    nvcc: str | None = None
    libstdcxx: str | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`source` is a digest of the kernels' source, see `environment.kernel_source`. `models` names the profiles the
    cast is limited to; empty for a complete cast. `built` is when the cast was finished, `seconds` how long it took."""

    format: int = FORMAT
    architecture: str
    versions: Versions
    source: str = ""
    models: tuple[str, ...] = ()
    variants: tuple[CastVariant, ...]
    flashinfer: tuple[str, ...] = ()
    files: tuple[File, ...]
    built: float
    seconds: float
    digest: str = ""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def spilling(self) -> tuple[CastVariant, ...]:
        """Variants with more than `MOST_STACK` bytes of local memory per thread, most first."""
        spilling = [variant for variant in self.variants if (variant.stack or 0) > MOST_STACK]
        return tuple(sorted(spilling, key=lambda variant: -(variant.stack or 0)))

    def summary(self) -> CastSummary:
        """For the choice of backends."""
        return CastSummary(
            arch=int(self.architecture.removeprefix("sm_")),
            variants=frozenset(variant.name for variant in self.variants),
            modules=frozenset(self.flashinfer),
        )


class _Header(msgspec.Struct):
    format: int


def digest_of(manifest: Manifest) -> str:
    """Over all of the manifest but the digest itself."""
    plain = msgspec.structs.replace(manifest, digest="")
    return hashlib.sha256(msgspec.json.encode(plain)).hexdigest()


def write(manifest: Manifest, folder: Path) -> Manifest:
    """Write it atomically, with its digest; returns what was written."""
    complete = msgspec.structs.replace(manifest, digest=digest_of(manifest))
    partial = folder / f"{NAME}.partial"
    with partial.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(complete), indent=1))
        file.flush()
        os.fsync(file.fileno())
    partial.rename(folder / NAME)
    return complete


def parse(text: bytes, path: Path) -> Manifest:
    """The manifest in `text`, read from `path`. Raises CastError."""
    try:
        header = msgspec.json.decode(text, type=_Header)
        if header.format > FORMAT:
            raise CastError(
                "cast-too-new",
                f"{path} has format {header.format}; this Ingot reads formats up to {FORMAT}.",
                "Use the Ingot that made the cast, or cast again with this one.",
            )
        manifest = msgspec.json.decode(text, type=Manifest)
    except msgspec.MsgspecError as error:
        raise _unreadable(path, str(error)) from None
    if digest_of(manifest) != manifest.digest:
        raise CastError(
            "cast-edited",
            f"{path} was edited: its digest does not match its content.",
            "Restore the original, or cast again into an empty folder.",
        )
    for fault in _faults(manifest):
        raise _unreadable(path, fault)
    return manifest


def _faults(manifest: Manifest) -> Iterator[str]:
    """Contradictions that the digest does not reveal."""
    if manifest.architecture not in ARCHITECTURES:
        yield f"architecture {manifest.architecture!r} is not one of {', '.join(ARCHITECTURES)}"
    paths = {file.path for file in manifest.files}
    folders = {path.rpartition("/")[0] for path in paths}
    for variant in manifest.variants:
        for key in variant.keys:
            if f"{TRITON}/{key}" not in folders:
                yield f"there is no file for the key {key!r} of {variant.name}"
    for module in manifest.flashinfer:
        if library_of(module) not in paths:
            yield f"there is no library for the FlashInfer module {module!r}"


def _unreadable(path: Path, why: str) -> CastError:
    return CastError("cast-unreadable", f"{path} is not a valid manifest: {why}.", "Cast again into an empty folder.")
