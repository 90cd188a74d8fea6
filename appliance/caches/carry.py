"""Check a pack that was made elsewhere, and take it over."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from appliance.bundle.errors import BundleError, UntrustedError
from appliance.bundle.signature import MAX_KEY_BYTES, MAX_SIGNATURE_BYTES, PublicKey, Signature
from appliance.home import read_file, sync_folder
from appliance.vllm.cache_packs.pack import (
    FILES,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    SIGNATURE,
    SIGNER,
    PackError,
    PackFolder,
    pass_on,
    read_pack,
)


def signed_by(folder: Path, trusted: Sequence[PublicKey]) -> tuple[str | None, bool]:
    """The id of the key that signed the pack, and whether it is one of `trusted`; None where it is unsigned.

    Raises:
        BundleError: the signature is not that of the key beside it, or not of this list of files.
    """
    if not (folder / SIGNATURE).exists():
        return None, False
    raw = read_file(folder / MANIFEST, MAX_MANIFEST_BYTES)
    signature = Signature(read_file(folder / SIGNATURE, MAX_SIGNATURE_BYTES))
    key = PublicKey.parse(read_file(folder / SIGNER, MAX_KEY_BYTES))
    known = [one for one in trusted if one.id == signature.key_id]
    if known and key not in known:
        raise BundleError("signer", f"{SIGNER} has the id of a trusted key but is another key; do not use this pack")
    if key.id != signature.key_id:
        raise BundleError("signer", f"{SIGNER} is not the key that signed the pack; do not use this pack")
    signature.check(raw, key)
    return key.id, bool(known)


def verify(folder: Path) -> PackFolder:
    """Compare every file with its hash, and see that there are no others.

    Raises:
        PackError: a file is missing, damaged, or not listed.
    """
    found = read_pack(folder)
    for file in found.pack.files:
        pass_on(found, file)
    listed = {file.path for file in found.pack.files}
    for below, folders, names in os.walk(folder / FILES):
        links = [name for name in folders if Path(below, name).is_symlink()]
        for name in (*links, *names):
            path = Path(below, name).relative_to(folder / FILES).as_posix()
            if path not in listed:
                raise PackError(
                    "unlisted", f"{str(folder / FILES / path)!r} is not listed in {MANIFEST}; copy the pack again"
                )
    return found


def add(source: Path, packs: Path, trusted: Sequence[PublicKey], *, allow_untrusted: bool = False) -> PackFolder:
    """Copy a pack to the folder `packs`, whole or not at all.

    Raises:
        PackError: it is damaged, or another of its name is there.
        UntrustedError: nobody trusted has signed it, unless `allow_untrusted`: it holds code that the engine runs.
    """
    name = read_pack(source).pack.name
    partial = packs / f".partial-{name}"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        for part in (MANIFEST, SIGNATURE, SIGNER):
            if (source / part).exists():
                (partial / part).write_bytes(read_file(source / part, MAX_MANIFEST_BYTES))
        # Of the copy: what lies at the source may change meanwhile.
        key, is_trusted = signed_by(partial, trusted)
        if not (is_trusted or allow_untrusted):
            raise UntrustedError("untrusted" if key else "unsigned", f"{source} {_why_untrusted(key)}")
        found = read_pack(partial)
        target = packs / found.pack.name
        if (there := _whole(target, found)) is not None:
            shutil.rmtree(partial)
            return there
        for file in found.pack.files:
            place = found.file(file.path)
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("xb") as opened:
                pass_on(PackFolder(source, found.pack, found.digest), file, opened.write)
        shutil.rmtree(target, ignore_errors=True)  # a damaged one
        os.rename(partial, target)
        sync_folder(packs)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
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


def _why_untrusted(key: str | None) -> str:
    if key is None:
        return "is not signed; ask for a signed pack, or add --allow-untrusted if it is your own"
    return (
        f"is signed by key {key}, which is not trusted here; compare the key with the one its owner gave you, then run "
        "`ingot bundle trust KEY`"
    )
