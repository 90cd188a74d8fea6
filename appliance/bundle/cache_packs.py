"""Cache packs in bundles, and their signatures: what vLLM compiled for one model on one kind of machine, carried to
others (docs/vllm.md). A pack in a bundle has the files that its folder has."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from appliance.bundle.archive import Archive
from appliance.bundle.copying import Copier, Progress, Report, silent, write_all
from appliance.bundle.entries import Entry
from appliance.bundle.errors import BundleError
from appliance.bundle.install import require_trusted
from appliance.bundle.lock import only_one
from appliance.bundle.manifest import PackNote
from appliance.bundle.names import is_path
from appliance.bundle.outline import read_head
from appliance.bundle.signature import MAX_KEY_BYTES, MAX_SIGNATURE_BYTES, PublicKey, Signature
from appliance.bundle.verify import check, listed
from appliance.hardware.machine import Inventory
from appliance.home import read_file, sync_folder
from appliance.vllm.cache_packs.facts import foreign_to
from appliance.vllm.cache_packs.pack import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    OBJECTS,
    SIGNATURE,
    SIGNER,
    PackError,
    PackFolder,
    make_store,
    open_to_readers,
    read_pack,
    verify,
)
from appliance.vllm.installation import read_installation
from appliance.vllm_program import find_program


class Refused(NamedTuple):
    """A pack of the bundle that no launch on this machine could use, and why."""

    name: str
    reason: str


class Installed(NamedTuple):
    packs: list[PackFolder]
    refused: list[Refused]


def signed_by(folder: Path, trusted: Sequence[PublicKey]) -> tuple[str | None, bool]:
    """The id of the key that signed the pack, and whether it is one of `trusted`; None where it is unsigned.

    Raises:
        BundleError: the signature is not that of the key beside it, or not of this list of files.
    """
    if not (folder / SIGNATURE).exists():
        return None, False
    raw = read_file(folder / MANIFEST, MAX_MANIFEST_BYTES)
    with _whole_beside(SIGNATURE):
        signature = Signature(read_file(folder / SIGNATURE, MAX_SIGNATURE_BYTES))
    with _whole_beside(SIGNER):
        key = PublicKey.parse(read_file(folder / SIGNER, MAX_KEY_BYTES))
    known = [one for one in trusted if one.id == signature.key_id]
    if known and key not in known:
        raise BundleError("signer", f"{SIGNER} has the id of a trusted key but is another key; do not use this pack")
    if key.id != signature.key_id:
        raise BundleError("signer", f"{SIGNER} is not the key that signed the pack; do not use this pack")
    try:
        signature.check(raw, key)
    except BundleError as error:
        what = f"{MANIFEST} is not what key {key.id} signed: it was changed, or {SIGNATURE} is another pack's"
        raise BundleError(error.code, f"{what}; do not use this pack") from error
    return key.id, bool(known)


@contextmanager
def _whole_beside(name: str) -> Iterator[None]:
    """Errors in reading a key or a signature name the pack's file, and say to copy the pack again."""
    try:
        yield
    except OSError as error:
        raise BundleError("signature", f"{name} cannot be read: {error.strerror}; copy the pack again") from error
    except BundleError as error:
        raise BundleError(error.code, f"{name} is damaged; copy the pack again") from error


def pack_entries(folder: Path) -> tuple[PackNote, list[Entry]]:
    """What a bundle says of the pack in `folder`, and its files, every one compared with its hash.

    Raises:
        BundleError: it is no whole pack, or its signature is not its own.
    """
    try:
        found = verify(folder)
    except PackError as error:
        raise BundleError(error.code, str(error)) from error
    signed_by(folder, ())
    pack, below = found.pack, f"packs/{found.pack.name}/"
    entries = [
        Entry(below + name, path.stat().st_size, path)
        for name in (MANIFEST, SIGNATURE, SIGNER)
        if (path := folder / name).is_file()
    ]
    contents = {file.sha256: file for file in pack.files}
    entries += [
        Entry(f"{below}{OBJECTS}/{sha256}", file.size, found.object(file), sha256)
        for sha256, file in sorted(contents.items())
    ]
    assert all(is_path(entry.path) for entry in entries), "a pack's name and its hashes are plain"
    versions = pack.facts.versions
    note = PackNote(
        name=pack.name, model=pack.facts.model, processor=pack.facts.processor, vllm=versions.get("vllm", "")
    )
    return note, entries


def install_packs(
    path: Path,
    packs: Path,
    trusted: Sequence[PublicKey],
    inventory: Inventory,
    environ: Mapping[str, str] = os.environ,
    names: Sequence[str] | None = None,
    report: Report = silent,
    stop: threading.Event | None = None,
    *,
    allow_untrusted: bool = False,
) -> Installed:
    """Copy the packs `names` (all if None) of the bundle `path` into the folder `packs`, each whole or not at all. What
    was made for other GPUs, another driver or another vLLM than this machine has is left out, and named; where it was
    asked for by name, it is an error.

    Raises:
        BundleError: as `verify`; nobody trusted has signed the bundle (UntrustedError), unless `allow_untrusted`; the
            bundle has no such pack; a pack is damaged, its own signature is wrong, or another of its name is there.
    """
    make_store(packs)
    with Archive(path) as archive, only_one(packs):
        outline = read_head(archive, trusted)
        require_trusted(archive, outline, allow_untrusted)
        held = [note.name for note in outline.manifest.packs]
        if missing := [name for name in names or () if name not in held]:
            raise BundleError(
                "no-pack", f"the bundle contains no cache pack {missing[0]}; it contains {', '.join(held) or 'none'}"
            )
        partials = {name: packs / f".partial-{name}" for name in held if names is None or name in names}
        chosen = [file for name in partials for file in outline.manifest.below(f"packs/{name}/")]
        progress = Progress(sum(file.size for file in chosen), report)
        try:
            for partial in partials.values():
                shutil.rmtree(partial, ignore_errors=True)  # of an installation that was cut off
            with Copier(progress.advance, stop) as copier:
                for file in outline.manifest.files:
                    member = listed(archive, file)
                    kind, name, *inside = file.path.split("/")
                    if kind != "packs" or name not in partials:
                        continue
                    target = partials[name].joinpath(*inside)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with target.open("xb", buffering=0) as out:
                        sha256 = copier.copy(
                            archive.source.read_into,
                            member.start,
                            member.size,
                            lambda piece, out=out: write_all(out.fileno(), piece),  # type: ignore[misc]
                        )
                        os.fsync(out.fileno())
                    check(archive, file, member, sha256)
            return _settle(partials, packs, trusted, inventory, environ, by_name=names is not None)
        except PackError as error:
            raise BundleError(error.code, str(error)) from error
        finally:
            for partial in partials.values():
                shutil.rmtree(partial, ignore_errors=True)


def _settle(
    partials: dict[str, Path],
    packs: Path,
    trusted: Sequence[PublicKey],
    inventory: Inventory,
    environ: Mapping[str, str],
    *,
    by_name: bool,
) -> Installed:
    program = find_program(environ)
    installation = read_installation(program) if program else None
    done, refused = [], []
    for name, partial in partials.items():
        found = verify(partial)
        if found.pack.name != name:
            raise BundleError("pack-name", f"packs/{name} is the cache pack {found.pack.name}; do not use this bundle")
        signed_by(partial, trusted)  # the bundle's signer answers for one that is unsigned, or signed by a stranger
        reasons = foreign_to(found.pack.facts, inventory, installation.version if installation else None)
        if reasons and by_name:
            raise BundleError("foreign-pack", f"the cache pack {name} is of no use here: {'; '.join(reasons)}")
        if reasons:
            refused.append(Refused(name, "; ".join(reasons)))
        else:
            done.append(take_over(partial, packs))
    return Installed(done, refused)


def take_over(partial: Path, packs: Path) -> PackFolder:
    """Move a pack that is whole to its name in the folder `packs`, unless it is there already.

    Raises:
        PackError: another of its name is there.
    """
    found = read_pack(partial)
    target = packs / found.pack.name
    if (there := _whole(target, found)) is not None:
        return there
    shutil.rmtree(target, ignore_errors=True)  # a damaged one
    open_to_readers(partial)
    os.rename(partial, target)
    sync_folder(packs)
    return read_pack(target)


def _whole(target: Path, wanted: PackFolder) -> PackFolder | None:
    """The pack if it is there already; None if it is not, or damaged. Raises PackError if another is."""
    try:
        there = read_pack(target)
    except PackError:
        return None
    if there.digest != wanted.digest:
        raise PackError("name-taken", f"{target} holds another pack of that name; remove it first")
    try:
        return verify(target)
    except PackError:
        return None
