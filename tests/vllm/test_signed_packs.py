"""Packs that are carried: whose signature counts, that nothing changes after it, and what happens to older ones."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from appliance.bundle.cache_packs import signed_by
from appliance.bundle.errors import BundleError, UntrustedError
from appliance.bundle.lock import only_one
from appliance.bundle.signature import Key, PublicKey
from appliance.caches import carry
from appliance.caches.carry import add
from appliance.caches.collect import make_pack
from appliance.vllm.cache_packs import store
from appliance.vllm.cache_packs.pack import (
    MANIFEST,
    OBJECTS,
    SIGNATURE,
    SIGNER,
    PackError,
    PackFolder,
    encode,
    read_pack,
    verify,
)
from appliance.vllm.cache_packs.store import judge
from tests.vllm.compiled import COMPILED, FACTS
from tests.vllm.full_disk import no_file_over
from tests.vllm.test_cache_packs import object_of, packed


@pytest.fixture(scope="module")
def key() -> Key:
    return Key.generate()


@pytest.fixture
def signed(caches: Path, tmp_path: Path, key: Key) -> PackFolder:
    return make_pack(caches, tmp_path / "stick" / "one", profile="chat", cold_s=1, facts=FACTS, key=key)


def test_a_pack_that_somebody_trusted_signed_is_taken_over_whole(signed: PackFolder, tmp_path: Path, key: Key) -> None:
    packs = tmp_path / "packs"
    packs.mkdir()
    added = add(signed.path, packs, [key.public])
    assert (added.path, added.digest, packed(added)) == (packs / "one", signed.digest, COMPILED)
    assert signed_by(added.path, [key.public]) == (key.public.id, True)
    assert add(signed.path, packs, [key.public]) == added


def test_code_of_strangers_is_not_taken(signed: PackFolder, made: PackFolder, tmp_path: Path) -> None:
    packs = tmp_path / "taken"
    packs.mkdir()
    for pack, code in ((signed, "untrusted"), (made, "unsigned")):
        with pytest.raises(UntrustedError) as raised:
            add(pack.path, packs, [Key.generate().public])
        assert raised.value.code == code
        assert list(packs.iterdir()) == []
    assert add(made.path, packs, [], allow_untrusted=True).digest == made.digest


def test_a_list_that_was_changed_after_signing_is_refused(signed: PackFolder, tmp_path: Path, key: Key) -> None:
    changed = structs.replace(signed.pack, profile="other")
    (signed.path / MANIFEST).write_bytes(msgspec.json.encode(changed))
    with pytest.raises(BundleError):
        add(signed.path, tmp_path / "packs", [key.public], allow_untrusted=True)


@pytest.mark.parametrize(("name", "left"), [(SIGNATURE, b"junk"), (SIGNER, b"junk"), (SIGNER, None)])
def test_a_key_or_a_signature_that_is_no_longer_one_is_named(signed: PackFolder, name: str, left: bytes | None) -> None:
    (signed.path / name).unlink()
    if left is not None:
        (signed.path / name).write_bytes(left)
    with pytest.raises(BundleError, match=name):
        signed_by(signed.path, ())


def test_another_of_the_same_name_stays(signed: PackFolder, made: PackFolder, tmp_path: Path, key: Key) -> None:
    with pytest.raises(PackError) as raised:
        add(signed.path, made.path.parent, [key.public])
    assert raised.value.code == "name-taken"
    assert read_pack(made.path) == made


def test_a_source_that_changes_after_it_was_signed_is_not_taken(
    signed: PackFolder, tmp_path: Path, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is checked is the copy, not the medium."""
    packs = tmp_path / "packs"
    packs.mkdir()

    def swap(folder: Path, trusted: Sequence[PublicKey]) -> tuple[str | None, bool]:
        (signed.path / MANIFEST).write_bytes(encode(structs.replace(signed.pack, profile="other")))
        return signed_by(folder, trusted)

    monkeypatch.setattr(carry, "signed_by", swap)
    added = add(signed.path, packs, [key.public])
    assert added.digest == signed.digest
    assert signed_by(added.path, [key.public]) == (key.public.id, True)


def test_one_is_made_or_added_at_a_time(signed: PackFolder, caches: Path, tmp_path: Path, key: Key) -> None:
    """Two would write to the same hidden folder."""
    packs = tmp_path / "packs"
    packs.mkdir()
    with only_one(packs):
        for write in (
            lambda: add(signed.path, packs, [key.public]),
            lambda: make_pack(caches, packs / "one", profile="chat", cold_s=1, facts=FACTS),
        ):
            with pytest.raises(BundleError) as raised:
                write()
            assert raised.value.code == "busy"
    assert list(packs.iterdir()) == []


def test_a_full_disk_is_not_taken_for_a_damaged_pack(signed: PackFolder, tmp_path: Path, key: Key) -> None:
    with pytest.raises(OSError, match="File too large"), no_file_over(4000):
        add(signed.path, tmp_path / "packs", [key.public])
    assert list((tmp_path / "packs").iterdir()) == []


def test_others_may_read_it_whatever_the_umask(caches: Path, tmp_path: Path) -> None:
    """Where it was made, and where it was added."""
    before = os.umask(0o077)
    try:
        made = make_pack(caches, tmp_path / "made" / "one", profile="chat", cold_s=1, facts=FACTS)
        add(made.path, tmp_path / "packs", [], allow_untrusted=True)
    finally:
        os.umask(before)
    for folder in (made.path, tmp_path / "packs"):
        modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in (folder, *folder.rglob("*"))}
        assert modes == {(True, 0o755), (False, 0o644)}


@pytest.mark.parametrize("harm", ["list", "file"])
def test_a_damaged_one_is_replaced(signed: PackFolder, tmp_path: Path, key: Key, harm: str) -> None:
    packs = tmp_path / "packs"
    packs.mkdir()
    added = add(signed.path, packs, [key.public])
    (added.path / MANIFEST if harm == "list" else object_of(added, "triton/AB/kernel.cubin")).write_bytes(b"{")
    assert verify(add(signed.path, packs, [key.public]).path).digest == signed.digest


def test_a_linked_folder_is_not_listed(made: PackFolder, tmp_path: Path) -> None:
    (made.path / OBJECTS / "more").symlink_to(tmp_path)
    with pytest.raises(PackError) as raised:
        verify(made.path)
    assert raised.value.code == "unlisted"


def test_packs_that_may_not_be_read_are_told(made: PackFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the console keeps them from the engine's user."""

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    assert [error.code for error in judge(FACTS, store.packs((made.path.parent,))).unreadable] == ["not-readable"]


def test_a_file_that_is_not_listed_is_found(made: PackFolder) -> None:
    (made.path / OBJECTS / ("0" * 64)).write_bytes(b"\x7fELF")
    with pytest.raises(PackError) as raised:
        verify(made.path)
    assert raised.value.code == "unlisted"
