"""Reads a bundle's head and its signature: its first members, verified before the rest is used."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.bundle import checksums, facts, manifest, names, part_check
from appliance.bundle.archive import Archive
from appliance.bundle.errors import BundleError
from appliance.bundle.manifest import Manifest
from appliance.bundle.signature import MAX_KEY_BYTES, MAX_SIGNATURE_BYTES, PublicKey, Signature
from appliance.bundle.tar_header import END, stored

LIMITS: Final = {
    names.INSTALLER: 1 << 20,
    names.CHECKSUMS: 16 << 20,
    names.SIGNATURE: MAX_SIGNATURE_BYTES,
    names.SIGNER: MAX_KEY_BYTES,
    names.MANIFEST: 16 << 20,
    names.FACTS: 64 << 10,
}


@dataclass(frozen=True)
class BundledModel:
    """A model that a bundle holds; `digest` is its checkpoint's, as a profile can name it."""

    name: str
    files: int
    bytes: int
    digest: str


@dataclass(frozen=True)
class Outline:
    """A consistent head of a bundle. `signed_by` is the id of the signing key, None if it is unsigned; `trusted` is
    whether that is one of the given keys. `signer` is the key in the bundle, which proves only that its owner signed
    it: compare it with a key from another channel before trusting it."""

    manifest: Manifest
    signed_by: str | None
    trusted: bool
    models: tuple[BundledModel, ...]
    signer: PublicKey | None = None
    trusted_comment: str = ""


def read_outline(path: Path, trusted: Sequence[PublicKey]) -> Outline:
    """Read and check the head of the bundle `path`, in milliseconds whatever its size.

    Raises:
        BundleError: it is no bundle, is damaged or contradicts itself, a part is missing or has another size, or a
            signature is not by the key that it names.
    """
    with Archive(path) as archive:
        return read_head(archive, trusted)


def read_head(archive: Archive, trusted: Sequence[PublicKey]) -> Outline:
    """The same of a bundle that is open; afterwards its next member is the first that `manifest.files` names."""

    def small(name: str) -> bytes:
        return archive.small(name, LIMITS[name])

    installer = small(names.INSTALLER) if archive.peek() == names.INSTALLER else None
    signed = small(names.CHECKSUMS)
    signature, signer = (
        (small(names.SIGNATURE), small(names.SIGNER)) if archive.peek() == names.SIGNATURE else (None, None)
    )
    who = _signature(signed, signature, signer, trusted)
    raw_manifest, raw_facts = small(names.MANIFEST), small(names.FACTS)
    head = {names.MANIFEST: raw_manifest, names.FACTS: raw_facts}
    if installer is not None:
        head = {names.INSTALLER: installer, **head}
    lines = _after_head(checksums.decode(signed), head)
    read = manifest.decode(raw_manifest)
    if archive.mtime != read.created:
        raise BundleError("inconsistent", f"{archive.name} gives two different creation times; do not use this bundle")
    if (installer is not None) is not (read.kind == "appliance"):
        raise BundleError(
            "inconsistent",
            f"{archive.name} is of kind {read.kind}, to which {names.INSTALLER} does not fit; do not use this bundle",
        )
    _compare(read, lines)
    if raw_facts != facts.encode(read):
        raise BundleError(
            "inconsistent", f"{names.FACTS} in {archive.name} contradicts {names.MANIFEST}; do not use this bundle"
        )
    end = archive.position + sum(stored(file.size) for file in read.files) + len(END)
    part_check.check_sizes(archive.source, read.parts, end)
    return Outline(read, *who[:2], _models(read), *who[2:])


def _signature(
    signed: bytes, raw: bytes | None, signer: bytes | None, trusted: Sequence[PublicKey]
) -> tuple[str | None, bool, PublicKey | None, str]:
    if raw is None or signer is None:
        return None, False, None, ""
    signature, key = Signature(raw), PublicKey.parse(signer)
    if signer != str(key).encode():
        raise BundleError(
            "signer", f"{names.SIGNER} is not in the form that `ingot bundle create` writes; do not use this bundle"
        )
    if key.id != signature.key_id:
        raise BundleError(
            "signer",
            f"{names.SIGNER} is key {key.id}, but key {signature.key_id} signed the bundle; do not use this bundle",
        )
    known = [one for one in trusted if one.id == key.id]
    if known and key not in known:
        raise BundleError(
            "signer", f"{names.SIGNER} has the id {key.id} of a trusted key but is another key; do not use this bundle"
        )
    signature.check(signed, key)
    return key.id, bool(known), key, signature.trusted_comment


def _after_head(signed: list[tuple[str, str]], head: dict[str, bytes]) -> list[tuple[str, str]]:
    """The signed lines of what follows the head, whose own hashes are compared, before it is looked into."""
    for (name, raw), line in itertools.zip_longest(head.items(), signed[: len(head)]):
        if line is None or line[0] != name:
            raise BundleError(
                "checksums", f"{names.CHECKSUMS} does not start with {', '.join(head)}; do not use this bundle"
            )
        if line[1] != hashlib.sha256(raw).hexdigest():
            raise BundleError("damaged", f"{name} is damaged: its checksum differs; copy the bundle again")
    return signed[len(head) :]


def _compare(read: Manifest, signed: list[tuple[str, str]]) -> None:
    """The manifest lists what is signed, in the same order and in its places, and nothing else."""
    rows = [(file.path, file.sha256) for file in read.files]
    for row, line in itertools.zip_longest(rows, signed):
        if row != line:
            name = (row or line or ("",))[0]
            raise BundleError(
                "inconsistent", f"{names.MANIFEST} and {names.CHECKSUMS} disagree about {name}; do not use this bundle"
            )
    places = [names.place(file.path) for file in read.files]
    for file, at, before in zip(read.files, places, [0, *places], strict=False):
        if at is None or before is None or at < before:
            raise BundleError(
                "place", f"{file.path} does not belong in a bundle, or not at that position; do not use this bundle"
            )


def _models(read: Manifest) -> tuple[BundledModel, ...]:
    sizes: dict[str, list[int]] = {note.name: [] for note in read.models}
    for file in read.below("models/"):
        sizes[file.path.split("/")[1]].append(file.size)
    return tuple(
        BundledModel(note.name, len(sizes[note.name]), sum(sizes[note.name]), note.digest) for note in read.models
    )
