"""Copy models out of a bundle into the models folder: each as a whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

from appliance.bundle import part_check
from appliance.bundle.archive import Archive, Member
from appliance.bundle.copying import Copier, Progress, Report, silent, write_all
from appliance.bundle.errors import BundleError, StoppedError, UntrustedError
from appliance.bundle.lock import only_one
from appliance.bundle.manifest import BundledFile
from appliance.bundle.outline import Outline, read_head
from appliance.bundle.signature import PublicKey
from appliance.bundle.verify import check, listed
from appliance.home import sync_folder

SPARE_BYTES = 64 << 20  # what stays free


def install_models(
    path: Path,
    models_folder: Path,
    trusted: Sequence[PublicKey],
    names: Sequence[str] | None = None,
    report: Report = silent,
    stop: threading.Event | None = None,
    *,
    allow_untrusted: bool = False,
) -> list[Path]:
    """Copy the models `names` (all if None) of the bundle `path` into `models_folder`, checking each file's hash on the
    way; where they now lie. `report(done, total)` counts bytes.

    A model lies in a hidden folder until it is whole. When the machine goes down, or the medium is pulled out, that
    folder stays, and the next call goes on from it; a bundle that turns out damaged, or `stop`, leaves nothing.

    Raises:
        BundleError: as `verify`; nobody trusted has signed it (UntrustedError), unless `allow_untrusted`; a model of
            that name is there already; the disk is too small; `stop` was set (StoppedError).
        OSError: the medium or the disk failed.
    """
    with Archive(path) as archive, only_one(models_folder):
        outline = read_head(archive, trusted)
        require_trusted(archive, outline, allow_untrusted)
        chosen = _chosen(outline, names, models_folder)
        marks = {name: _incoming(models_folder, name, outline) for name in chosen}
        for name, incoming in marks.items():
            _clear_others(models_folder, name, incoming)
        files = [file for name in chosen for file in outline.manifest.below(f"models/{name}/")]
        _require_room(models_folder, files, marks)
        progress = Progress(sum(file.size for file in files), report)
        try:
            with Copier(progress.advance, stop) as copier:
                return _copy(archive, outline, marks, models_folder, copier)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise BundleError(
                    "disk-full", f"{models_folder} is full; free some space, then install again to resume"
                ) from error
            raise
        except BundleError as error:
            for incoming in marks.values():
                shutil.rmtree(incoming, ignore_errors=True)
            if not isinstance(error, StoppedError):
                part_check.name_the_bad(archive.source, outline.manifest.parts, report, stop)
            raise


def require_trusted(archive: Archive, outline: Outline, allow_untrusted: bool) -> None:
    """Raises UntrustedError unless a trusted key has signed the bundle, or that does not matter."""
    if not (outline.trusted or allow_untrusted):
        raise UntrustedError("untrusted" if outline.signed_by else "unsigned", untrusted_text(archive.name, outline))


def untrusted_text(name: str, outline: Outline) -> str:
    """Why a bundle is not trusted, and what to do."""
    if outline.signed_by is None:
        return f"{name} is not signed; ask its creator for a signed bundle"
    return (
        f"{name} is signed by key {outline.signed_by}, which is not trusted here; compare the key with the one its "
        "owner gave you by another channel, then run `ingot bundle trust KEY`"
    )


def _chosen(outline: Outline, names: Sequence[str] | None, models_folder: Path) -> list[str]:
    held = [model.name for model in outline.models]
    for name in names or ():
        if name not in held:
            raise BundleError(
                "no-model", f"the bundle contains no model {name}; it contains {', '.join(held) or 'none'}"
            )
    chosen = [name for name in held if names is None or name in names]
    if not chosen:
        raise BundleError("no-model", "the bundle contains no models; install it with install.sh")
    for name in chosen:
        if os.path.lexists(models_folder / name):
            raise BundleError(
                "name-taken", f"a model named {name} already exists in {models_folder}; rename or remove it first"
            )
    return chosen


def _incoming(models_folder: Path, name: str, outline: Outline) -> Path:
    """The hidden folder of a model until it is complete, which depends on its content."""
    files = outline.manifest.below(f"models/{name}/")
    content = hashlib.sha256("".join(f"{file.sha256} {file.path}\n" for file in files).encode()).hexdigest()
    return models_folder / f".incoming-{name}-{content[:16]}"


def _clear_others(models_folder: Path, name: str, incoming: Path) -> None:
    """What is left of another content of that name."""
    for old in models_folder.glob(f".incoming-{name}-{'?' * 16}"):
        if old != incoming:
            shutil.rmtree(old, ignore_errors=True)


def _require_room(models_folder: Path, files: Sequence[BundledFile], marks: dict[str, Path]) -> None:
    there = sum(file.size for file in files if _is_there(_target(file, marks), file.size))
    need = sum(file.size for file in files) - there + SPARE_BYTES
    free = shutil.disk_usage(models_folder).free
    if free < need:
        names = ", ".join(marks)
        raise BundleError(
            "disk-full",
            f"{names} needs {need / 2**30:.2f} GiB in {models_folder}, which has {free / 2**30:.2f} GiB "
            "free; free some space",
        )


def _target(file: BundledFile, marks: dict[str, Path]) -> Path:
    _, name, inside = file.path.split("/", 2)
    return marks[name] / inside


def _is_there(path: Path, size: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size == size
    return False


def _copy(
    archive: Archive, outline: Outline, marks: dict[str, Path], models_folder: Path, copier: Copier
) -> list[Path]:
    for file in outline.manifest.files:
        member = listed(archive, file)
        if file.path.startswith("models/") and file.path.split("/")[1] in marks:
            _copy_file(archive, file, member, _target(file, marks), copier)
    archive.finish()
    done = []
    for name, incoming in marks.items():
        for folder in [incoming, *(path for path in incoming.rglob("*") if path.is_dir())]:
            folder.chmod(0o755)  # a model is no secret, and an engine may run as somebody else
            sync_folder(folder)
        os.rename(incoming, models_folder / name)
        done.append(models_folder / name)
    sync_folder(models_folder)
    return done


def _copy_file(archive: Archive, file: BundledFile, member: Member, target: Path, copier: Copier) -> None:
    if _is_there(target, file.size):
        with target.open("rb", buffering=0) as there:
            sha256 = copier.copy(lambda buffer, at: os.preadv(there.fileno(), [buffer], at), 0, file.size, None)
        if sha256 == file.sha256:
            return
    target.parent.mkdir(parents=True, exist_ok=True)
    # Its name without the ending is that of a file which is whole: on the disk, and of the right hash.
    partial = target.with_name(target.name + ".partial")
    with partial.open("wb", buffering=0) as out:
        sha256 = copier.copy(
            archive.source.read_into, member.start, member.size, lambda piece: write_all(out.fileno(), piece)
        )
        os.fsync(out.fileno())
    check(archive, file, member, sha256)
    partial.chmod(0o644)
    os.rename(partial, target)
