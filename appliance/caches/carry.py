"""Check a pack that was made elsewhere, and take it over."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from appliance.bundle.cache_packs import signed_by, take_over
from appliance.bundle.errors import UntrustedError
from appliance.bundle.lock import only_one
from appliance.bundle.signature import PublicKey
from appliance.home import read_file, sync_below
from appliance.vllm.cache_packs.pack import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    OBJECTS,
    SIGNATURE,
    SIGNER,
    PackFolder,
    make_store,
    pieces,
    read_pack,
)


def add(source: Path, packs: Path, trusted: Sequence[PublicKey], *, allow_untrusted: bool = False) -> PackFolder:
    """Copy a pack to the folder `packs`, whole or not at all.

    Raises:
        BundleError: its signature is not its own, or another is being added.
        PackError: it is damaged, or another of its name is there.
        UntrustedError: nobody trusted has signed it, unless `allow_untrusted`: it holds code that the engine runs.
    """
    make_store(packs)
    with only_one(packs):
        return _add(source, packs, trusted, allow_untrusted=allow_untrusted)


def _add(source: Path, packs: Path, trusted: Sequence[PublicKey], *, allow_untrusted: bool) -> PackFolder:
    partial = packs / f".partial-{read_pack(source).pack.name}"
    shutil.rmtree(partial, ignore_errors=True)  # of one that was cut off
    try:
        partial.mkdir()
        for part in (MANIFEST, SIGNATURE, SIGNER):
            if (source / part).exists():
                (partial / part).write_bytes(read_file(source / part, MAX_MANIFEST_BYTES))
        # Of the copy: what lies at the source may change meanwhile.
        key, is_trusted = signed_by(partial, trusted)
        if not (is_trusted or allow_untrusted):
            raise UntrustedError("untrusted" if key else "unsigned", f"{source} {_why_untrusted(key)}")
        found = read_pack(partial)
        source_of = PackFolder(source, found.pack, found.digest)
        (partial / OBJECTS).mkdir()
        for file in {file.sha256: file for file in found.pack.files}.values():
            with found.object(file).open("xb") as opened:
                opened.writelines(pieces(source_of, file))
        sync_below(partial)
        return take_over(partial, packs)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _why_untrusted(key: str | None) -> str:
    if key is None:
        return "is not signed; ask for a signed pack, or add --allow-untrusted if it is your own"
    return (
        f"is signed by key {key}, which is not trusted here; compare the key with the one its owner gave you, then run "
        "`ingot bundle trust KEY`"
    )
