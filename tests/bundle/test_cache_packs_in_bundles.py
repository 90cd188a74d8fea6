"""Cache packs come over whole, only to machines that they are for, and never where anything of them was changed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from msgspec import structs

from appliance.bundle.bundle_command import bundle as command
from appliance.bundle.cache_packs import install_packs
from appliance.bundle.errors import BundleError, UntrustedError
from appliance.bundle.manifest import BundledFile, Manifest
from appliance.bundle.pack import Order, create
from appliance.bundle.signature import Key
from appliance.bundle.trust import trust
from appliance.bundle.verify import verify
from appliance.home import Home
from appliance.vllm.cache_packs.pack import MANIFEST, PackFolder, read_pack
from appliance.vllm.cache_packs.pack import verify as verify_pack
from tests.bundle.carried_pack import FACTS, written
from tests.bundle.conftest import refusal, resigned
from tests.bundle.install_site import Site, make
from tests.vllm.stand_in import install as install_vllm
from tests.vllm.test_vllm_command import CPU, gpus

ENVIRON = {"PATH": "/nowhere"}


@pytest.fixture
def made(tmp_path: Path, key: Key) -> PackFolder:
    return written(tmp_path, key=key)


@pytest.fixture
def bundled(made: PackFolder, model: Path, key: Key, tmp_path: Path) -> Path:
    create(Order(tmp_path / "all.ingot", key, [model], packs=[made.path]))
    return tmp_path / "all.ingot"


@pytest.fixture
def packs(home: Home) -> Path:
    return home.root / "cache-packs"


def test_a_pack_comes_out_as_it_went_in(bundled: Path, made: PackFolder, packs: Path, key: Key) -> None:
    outline = verify(bundled, [key.public])
    [note] = outline.manifest.packs
    assert (note.name, note.model, note.vllm, note.processor) == ("chat-h100", "sha256:1", "0.32.0", FACTS.processor)
    done = install_packs(bundled, packs, [key.public], gpus(), ENVIRON)
    assert [pack.path for pack in done.packs] == [packs / "chat-h100"]
    assert done.refused == []
    assert verify_pack(packs / "chat-h100").digest == made.digest
    assert [path.name for path in packs.iterdir()] == ["chat-h100"]
    assert install_packs(bundled, packs, [key.public], gpus(), ENVIRON) == done  # again: nothing to do


def test_one_alone_makes_a_bundle(made: PackFolder, packs: Path, key: Key, tmp_path: Path) -> None:
    create(Order(tmp_path / "packs.ingot", key, packs=[made.path]))
    assert len(install_packs(tmp_path / "packs.ingot", packs, [key.public], gpus(), ENVIRON).packs) == 1


@pytest.mark.parametrize(
    ("inventory", "named"),
    [
        (gpus(name="NVIDIA A100-SXM4-80GB", compute_capability=(8, 0)), "A100"),
        (structs.replace(gpus(), driver_version="590.10"), "590"),
    ],
)
def test_packs_for_other_machines_stay_away_and_are_named(
    bundled: Path, packs: Path, key: Key, inventory: Any, named: str
) -> None:
    done = install_packs(bundled, packs, [key.public], inventory, ENVIRON)
    assert (done.packs, [one.name for one in done.refused]) == ([], ["chat-h100"])
    assert named in done.refused[0].reason
    with refusal("foreign-pack", names=("chat-h100", named)):
        install_packs(bundled, packs, [key.public], inventory, ENVIRON, ["chat-h100"])
    assert list(packs.iterdir()) == []


def test_a_pack_of_another_vllm_is_stale(bundled: Path, packs: Path, key: Key, tmp_path: Path) -> None:
    environ = {"INGOT_VLLM": str(install_vllm(tmp_path / "vllm", "0.33.0"))}
    [refused] = install_packs(bundled, packs, [key.public], gpus(), environ).refused
    assert "0.32.0" in refused.reason
    assert "0.33.0" in refused.reason


def test_where_the_gpus_cannot_be_seen_nothing_is_refused(bundled: Path, packs: Path, key: Key) -> None:
    """As from the console's container: preflight judges where they are."""
    assert len(install_packs(bundled, packs, [key.public], CPU, ENVIRON).packs) == 1


def test_several_gpus_of_a_kind_are_that_kind(packs: Path, key: Key, tmp_path: Path) -> None:
    two = written(tmp_path, "two", processor=f"2 x {FACTS.processor}")
    create(Order(tmp_path / "two.ingot", key, packs=[two.path]))
    assert len(install_packs(tmp_path / "two.ingot", packs, [key.public], gpus(2), ENVIRON).packs) == 1


@pytest.mark.parametrize(("has", "fits"), [("both", True), ("one", False)])
def test_a_pack_of_unlike_gpus_is_for_machines_that_have_each(
    packs: Path, key: Key, tmp_path: Path, has: str, fits: bool
) -> None:
    inventory = gpus(2)
    unlike = structs.replace(inventory.gpus[1], name="NVIDIA A100-SXM4-80GB", compute_capability=(8, 0))
    both = structs.replace(inventory, gpus=(inventory.gpus[0], unlike))
    made = written(tmp_path, "both", processor=f"2 x {FACTS.processor} and {unlike.name}, {unlike.architecture}")
    create(Order(tmp_path / "both.ingot", key, packs=[made.path]))
    machine = both if has == "both" else inventory
    done = install_packs(tmp_path / "both.ingot", packs, [key.public], machine, ENVIRON)
    assert (len(done.packs), len(done.refused)) == (int(fits), int(not fits))


def test_another_users_engine_may_read_it_whatever_the_umask(bundled: Path, packs: Path, key: Key) -> None:
    before = os.umask(0o077)
    try:
        install_packs(bundled, packs, [key.public], gpus(), ENVIRON)
    finally:
        os.umask(before)
    modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in (packs, *packs.rglob("*"))}
    assert modes == {(True, 0o755), (False, 0o644)}


def test_strangers_and_unknown_names_are_refused(bundled: Path, packs: Path, key: Key) -> None:
    with refusal("untrusted", kind=UntrustedError):
        install_packs(bundled, packs, [Key.generate().public], gpus(), ENVIRON)
    with refusal("no-pack", names=("other", "chat-h100")):
        install_packs(bundled, packs, [key.public], gpus(), ENVIRON, ["other"])
    assert list(packs.iterdir()) == []


def replaced(path: Path, key: Key, name: str, raw: bytes | None) -> None:
    """What a signer whom the site trusts could do: another content, or none, of a file of the pack."""

    def change(members: dict[str, bytes], manifest: Manifest) -> Manifest:
        files = [file for file in manifest.files if file.path != name or raw is not None]
        if raw is None:
            del members[name]
        else:
            members[name] = raw
        of = {file.path: file for file in files}
        if raw is not None:
            digest = hashlib.sha256(raw).hexdigest()
            of[name] = BundledFile(path=name, size=len(raw), sha256=digest)
        return structs.replace(manifest, files=tuple(of.values()))

    resigned(path, key, change)


def test_nothing_of_a_pack_that_is_not_whole_is_installed(
    bundled: Path, made: PackFolder, packs: Path, key: Key
) -> None:
    victim = f"packs/chat-h100/objects/{made.pack.files[0].sha256}"
    kept = bundled.read_bytes()
    for raw, codes in ((b"CUBIN", ("damaged",)), (None, ("damaged",))):
        bundled.write_bytes(kept)
        replaced(bundled, key, victim, raw)
        with refusal(*codes):
            install_packs(bundled, packs, [key.public], gpus(), ENVIRON)
        assert list(packs.iterdir()) == []


def test_a_list_that_its_signer_did_not_sign_is_refused(bundled: Path, made: PackFolder, packs: Path, key: Key) -> None:
    changed = structs.replace(made.pack, profile="other")
    replaced(bundled, key, "packs/chat-h100/pack.json", msgspec.json.encode(changed))
    with refusal("signature"):
        install_packs(bundled, packs, [key.public], gpus(), ENVIRON)
    assert list(packs.iterdir()) == []


def test_a_pack_under_another_name_is_refused(packs: Path, key: Key, tmp_path: Path) -> None:
    unsigned = written(tmp_path)
    create(Order(tmp_path / "one.ingot", key, packs=[unsigned.path]))
    changed = structs.replace(unsigned.pack, name="other")
    replaced(tmp_path / "one.ingot", key, "packs/chat-h100/pack.json", msgspec.json.encode(changed))
    with refusal("pack-name", names=("chat-h100", "other")):
        install_packs(tmp_path / "one.ingot", packs, [key.public], gpus(), ENVIRON)


def test_one_that_is_damaged_is_not_bundled(made: PackFolder, key: Key, tmp_path: Path) -> None:
    kept = made.object(made.pack.files[0])
    content = kept.read_bytes()
    kept.write_bytes(b"CUBIN")
    with refusal("damaged"):
        create(Order(tmp_path / "a.ingot", key, packs=[made.path]))
    kept.write_bytes(content)
    (made.path / MANIFEST).write_bytes(msgspec.json.encode(structs.replace(made.pack, profile="other")))
    with refusal("signature"):
        create(Order(tmp_path / "a.ingot", key, packs=[made.path]))
    with refusal("not-a-pack"):
        create(Order(tmp_path / "a.ingot", key, packs=[tmp_path]))
    assert not (tmp_path / "a.ingot").exists()


def test_two_of_one_name_are_not_bundled(made: PackFolder, key: Key, tmp_path: Path) -> None:
    """A pack keeps its name in a folder of another: to rename that would not help."""
    again = tmp_path / "renamed"
    shutil.copytree(made.path, again)
    with refusal("name-clash", names=("named chat-h100", "--out")):
        create(Order(tmp_path / "a.ingot", key, packs=[made.path, again]))


def test_the_commands(made: PackFolder, model: Path, key: Key, home: Home, tmp_path: Path) -> None:
    trust(home, key.public)
    (tmp_path / "site.key").write_bytes(Key.generate().encode(""))
    run = CliRunner(env={"INGOT_HOME": str(home.root), "INGOT_MODELS": str(home.models), "INGOT_VLLM": None})
    out = tmp_path / "c.ingot"
    arguments = ["create", "--model", model, "--pack", made.path, "--sign", tmp_path / "site.key", "--out", out]
    done = run.invoke(command, [*map(str, arguments), "--json"])
    assert done.exit_code == 0, done.output
    assert [pack["name"] for pack in json.loads(done.stdout)["packs"]] == ["chat-h100"]
    shown = run.invoke(command, ["verify", str(out)])
    assert (shown.exit_code, "chat-h100" in shown.output) == (3, True)
    done = run.invoke(command, ["install", str(out), "--pack", "chat-h100", "--allow-untrusted", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == [{"pack": "chat-h100", "folder": str(home.root / "cache-packs/chat-h100")}]
    assert not (home.models / "tiny").exists()
    done = run.invoke(command, ["install", str(out), "--allow-untrusted", "--json"])
    assert {row.get("model") or row["pack"] for row in json.loads(done.stdout)} == {"tiny", "chat-h100"}


# ---------------------------------------------------------------------------------------------------------- install.sh


def test_install_sh_puts_packs_where_the_engine_reads_them(site: Site, key: Key, tmp_path: Path) -> None:
    first = make(tmp_path / "one", "1.0", key, packs=[written(tmp_path).path])
    status, told = site.install(first)
    assert status == 0, told
    place = site.into / "cache-packs" / "chat-h100"
    before = verify_pack(place)
    assert {path.stat().st_mode & 0o777 for path in (place, place / "objects", place / MANIFEST)} == {0o755, 0o644}
    [victim, *_] = (place / "objects").iterdir()
    victim.unlink()
    status, told = site.again(first)  # what vanished is brought back
    assert status == 0, told
    assert verify_pack(place) == before


def test_install_sh_replaces_a_pack_of_the_same_name(site: Site, key: Key, tmp_path: Path) -> None:
    status, told = site.install(make(tmp_path / "one", "1.0", key, packs=[written(tmp_path).path]))
    assert status == 0, told
    newer = written(tmp_path / "newer", driver="590")
    alone = tmp_path / "alone.ingot"
    create(Order(alone, key, packs=[newer.path]))
    status, told = site.again(alone)
    assert status == 0, told
    assert read_pack(site.into / "cache-packs" / "chat-h100").digest == newer.digest
    status, told = site.again("--uninstall", "--yes")
    assert status == 0, told
    assert not (site.into / "cache-packs").exists()


def test_install_sh_refuses_a_changed_pack(site: Site, key: Key, tmp_path: Path) -> None:
    first = make(tmp_path / "one", "1.0", key, packs=[written(tmp_path).path])
    raw = first.read_bytes()
    assert raw.count(b"\x7fELF") == 1
    first.write_bytes(raw.replace(b"\x7fELF", b"\x7fELf"))
    status, told = site.install(first)
    assert (status, "packs/chat-h100/objects/" in told) == (4, True)
    assert not (site.into / "cache-packs" / "chat-h100").exists()


def test_an_error_is_the_bundles(bundled: Path, packs: Path, key: Key) -> None:
    """Whoever calls hears of one kind of error."""
    packs.mkdir(exist_ok=True)
    (packs / "chat-h100").mkdir()
    create_other = structs.replace(read_pack_of(bundled, packs, key), profile="other")
    (packs / "chat-h100" / MANIFEST).write_bytes(msgspec.json.encode(create_other))
    with pytest.raises(BundleError) as caught:
        install_packs(bundled, packs, [key.public], gpus(), ENVIRON)
    assert caught.value.code == "name-taken"


def read_pack_of(bundled: Path, packs: Path, key: Key) -> Any:
    elsewhere = packs.with_name("elsewhere")
    install_packs(bundled, elsewhere, [key.public], gpus(), ENVIRON)
    return read_pack(elsewhere / "chat-h100").pack
