"""Make a bundle: gather what goes into it, write it in one pass, and sign it.

The head names the hash of everything that follows, so it is written twice: first with zeros, of the same length, and
again when the hashes are known. Models are so read once, however large.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from appliance import __version__
from appliance.bundle import checksums, facts, manifest, names, tar_header
from appliance.bundle.cache_packs import pack_entries
from appliance.bundle.copying import Copier, Progress
from appliance.bundle.entries import Entry, cast_entries, check_names, model_entries
from appliance.bundle.errors import BundleError
from appliance.bundle.manifest import BundledFile, BundledImage, Manifest, ModelNote, Parts
from appliance.bundle.outline import read_outline
from appliance.bundle.output import Output, place, require_room, staging
from appliance.bundle.parts import MAX_PARTS, numbers_of, part_path
from appliance.bundle.signature import Key

UNKNOWN = "0" * 64
# What is being done, and how many bytes of how many.
Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Appliance:
    """What a bundle of kind `appliance` holds beside models and casts."""

    release: str
    schema: str
    machine: str
    images: tuple[BundledImage, ...]
    entries: tuple[Entry, ...]
    installer: str


@dataclass(frozen=True)
class Order:
    """What to bundle. Without `key` it is unsigned; without `part_size` it is one file."""

    out: Path
    key: Key | None
    models: Sequence[Path] = ()
    casts: Sequence[Path] = ()
    packs: Sequence[Path] = ()
    part_size: int | None = None
    stage_appliance: Callable[[Path, Report], Appliance] | None = None
    stop: threading.Event | None = None


def create(order: Order, report: Report = lambda what, done, total: None) -> Manifest:
    """Write the bundle, which appears only once it is whole and on the disk.

    Raises:
        BundleError: something cannot be bundled, or is there already; nothing is left of the bundle then.
        CheckpointError: a model is incomplete.
    """
    refuse_existing(order)
    models = [model_entries(folder) for folder in order.models]
    casts = [cast_entries(folder) for folder in order.casts]
    packs = [pack_entries(folder) for folder in order.packs]
    names = [note.name for note, _ in packs]
    if twice := [name for at, name in enumerate(names) if name in names[:at]]:
        raise BundleError(
            "name-clash",
            f"two of the cache packs are named {twice[0]}; leave one out, or make it again with another --out",
        )
    folders = [
        *(entry for _, entries in casts for entry in entries),
        *(entry for _, entries in packs for entry in entries),
        *(entry for _, entries in models for entry in entries),
    ]
    check_names(folders)
    require_room(order.out.parent, sum(tar_header.stored(entry.size) for entry in folders))
    with staging(order.out) as folder:
        appliance = order.stage_appliance(folder, report) if order.stage_appliance else None
        entries = [*(appliance.entries if appliance else ()), *folders]
        check_names(entries)
        first = Manifest(
            kind="appliance" if appliance else "models",
            release=appliance.release if appliance else __version__,
            ingot=appliance.images[0].version if appliance else __version__,
            schema=appliance.schema if appliance else "",
            machine=appliance.machine if appliance else "",  # type: ignore[arg-type]  # checked where it is read
            created=int(os.environ.get("SOURCE_DATE_EPOCH") or time.time()),
            images=appliance.images if appliance else (),
            models=tuple(
                ModelNote(name=path.name, digest=digest) for path, (digest, _) in zip(order.models, models, strict=True)
            ),
            casts=tuple(architecture for architecture, _ in casts),
            packs=tuple(note for note, _ in packs),
            files=tuple(BundledFile(path=entry.path, size=entry.size, sha256=UNKNOWN) for entry in entries),
        )
        installer = appliance.installer if appliance else None
        with Output(folder, order.out.name, order.part_size) as output:
            written = _write(order, output, first, entries, installer, report)
            output.sync()
            staged = output.paths
        read_outline(staged[0], [order.key.public] if order.key else [])  # what no reader takes is not handed out
        place([*staged, *_installer_beside(folder, installer, order.key)], order.out.parent)
    return written


def refuse_existing(order: Order) -> None:
    """Raises BundleError if a file would be overwritten, or the folder does not exist."""
    out = order.out
    if not out.parent.is_dir():
        raise BundleError("not-a-folder", f"{out.parent} is not a folder; create it first")
    beside = [names.INSTALLER, f"{names.INSTALLER}.minisig"] if order.stage_appliance else []
    parts = [part_path(out, number) for number in numbers_of(out)]
    for path in (out, *parts, *(out.with_name(name) for name in beside)):
        if os.path.lexists(path):
            raise BundleError("file-exists", f"{path} already exists; remove it, or choose another folder")


def _write(
    order: Order, output: Output, first: Manifest, entries: Sequence[Entry], installer: str | None, report: Report
) -> Manifest:
    """Everything, with the head's hashes last; the manifest as it was written."""
    first, head = _laid_out(order, first, installer)
    require_room(order.out.parent, len(head) + sum(tar_header.stored(entry.size) for entry in entries))
    progress = Progress(first.total_bytes, lambda done, total: report(f"writing {order.out.name}", done, total))
    output.write(head)
    files = []
    with Copier(progress.advance, order.stop) as copier:
        for entry in entries:
            output.write(tar_header.pack(tar_header.Header(entry.path, entry.size, first.created)))
            files.append(BundledFile(path=entry.path, size=entry.size, sha256=_copy(entry, copier, output)))
            output.write(bytes(-entry.size % tar_header.BLOCK))
            if entry.path.startswith("images/"):
                entry.source.unlink()  # it was saved for this, and the room may be needed
    output.write(tar_header.END)
    parts = first.parts and Parts(size=first.parts.size, sha256=output.later_parts())
    written = msgspec.structs.replace(first, files=tuple(files), parts=parts)
    final = _head(order.key, written, installer)
    assert len(final) == len(head)
    output.replace_start(final)
    return written


def _laid_out(order: Order, first: Manifest, installer: str | None) -> tuple[Manifest, bytes]:
    """The manifest with as many parts as there will be, and the head with zeros for hashes. The head grows with the
    number of parts, so that is raised until it fits."""
    count = 1
    while True:
        if order.part_size is not None:
            first = msgspec.structs.replace(first, parts=Parts(size=order.part_size, sha256=(UNKNOWN,) * (count - 1)))
        head = _head(order.key, first, installer)
        end = len(head) + sum(tar_header.stored(file.size) for file in first.files) + len(tar_header.END)
        if order.part_size is None:
            return first, head
        needed = -(-end // order.part_size)
        if len(head) > order.part_size or needed > MAX_PARTS:
            raise BundleError(
                "part-size",
                f"parts of {order.part_size:,} bytes are too small: a bundle has at most {MAX_PARTS} parts, "
                f"and the first contains a head of {len(head):,} bytes; use a larger --split",
            )
        if needed == count:
            return first, head
        count = needed


def _head(key: Key | None, written: Manifest, installer: str | None) -> bytes:
    """Everything before `written.files`."""
    said = {names.MANIFEST: manifest.encode(written), names.FACTS: facts.encode(written)}
    if installer is not None:
        said = {names.INSTALLER: installer.encode(), **said}
    lines = [(name, hashlib.sha256(raw).hexdigest()) for name, raw in said.items()]
    signed = checksums.encode([*lines, *((file.path, file.sha256) for file in written.files)])
    members = {names.INSTALLER: said.pop(names.INSTALLER, b""), names.CHECKSUMS: signed}
    if key is not None:
        comment = f"ingot bundle {written.kind} {written.release} timestamp:{written.created}"
        members |= {names.SIGNATURE: key.sign(signed, comment), names.SIGNER: str(key.public).encode()}
    members |= said
    if installer is None:
        del members[names.INSTALLER]
    return b"".join(
        tar_header.pack(tar_header.Header(name, len(raw), written.created)) + raw + bytes(-len(raw) % tar_header.BLOCK)
        for name, raw in members.items()
    )


def _copy(entry: Entry, copier: Copier, output: Output) -> str:
    """Write the content of a member; its hash."""
    with entry.source.open("rb", buffering=0) as file:
        sha256 = copier.copy(lambda buffer, at: os.preadv(file.fileno(), [buffer], at), 0, entry.size, output.write)
        now = os.fstat(file.fileno()).st_size
    if now != entry.size:
        raise BundleError(
            "changed",
            f"{entry.source} changed while it was being read; create the bundle again once nothing writes to it",
        )
    if entry.sha256 not in ("", sha256):
        raise BundleError(
            "damaged",
            f"{entry.source} is damaged: its checksum is not the one recorded when it was made; make it again",
        )
    return sha256


def _installer_beside(folder: Path, installer: str | None, key: Key | None) -> list[Path]:
    """A separate copy of install.sh with its own signature, to run without unpacking anything."""
    if installer is None:
        return []
    path = folder / names.INSTALLER
    path.write_text(installer)
    with contextlib.suppress(PermissionError):  # on FAT: `sh install.sh` needs no mode
        path.chmod(0o755)
    signed = [path]
    if key is not None:
        signature = path.with_name(f"{path.name}.minisig")
        signature.write_bytes(key.sign(installer.encode(), "ingot bundle install.sh"))
        signed.append(signature)
    return signed
