"""The keys whose bundles a site takes: files in its state folder, which a backup carries along."""

from __future__ import annotations

import os
from pathlib import Path

from appliance.bundle.errors import BundleError
from appliance.bundle.signature import PublicKey
from appliance.home import Home, write_atomically


def folder(home: Home) -> Path:
    return home.root / "trusted-keys"


def trusted_keys(home: Home) -> tuple[PublicKey, ...]:
    """The site's keys, by id. Raises BundleError that names a file that is none."""
    return tuple(PublicKey.read(path) for path in sorted(folder(home).glob("*.pub")))


def trust(home: Home, key: PublicKey) -> Path:
    """Trust bundles signed by `key`; returns its file."""
    folder(home).mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder(home) / f"{key.id}.pub"
    if path.exists() and PublicKey.read(path) != key:
        raise BundleError(
            "key-id-taken", f"{path} contains another key with the same id; if that one is wrong, remove it first"
        )
    write_atomically(path, str(key), mode=0o644)
    return path


def distrust(home: Home, key_id: str) -> None:
    """Take no more bundles signed by that key."""
    known = {key.id: key for key in trusted_keys(home)}
    if key_id.upper() not in known:
        raise BundleError(
            "key-unknown", f"key {key_id} is not trusted here; `ingot bundle keys` lists the trusted keys"
        )
    for path in folder(home).glob("*.pub"):
        if PublicKey.read(path).id == key_id.upper():
            os.unlink(path)
