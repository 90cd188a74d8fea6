"""install.sh: what it does and what it refuses, against a stand-in for Docker. tests/container has a real one."""

from __future__ import annotations

import os
import re
import shutil
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from appliance.bundle.install_script import install_script
from appliance.bundle.pack import Order, create
from appliance.bundle.signature import Key
from tests.bundle.conftest import members_of, tar_of, write_members
from tests.bundle.install_site import BUNDLE, MACHINE, ROLES, STUB, USAGE, Site, make
from tests.running import free_port
from tests.tiny import write_checkpoint


def changed(bundle: Path, into: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """A copy of a bundle with other members, as somebody without the key can make it."""
    into.mkdir()
    members = dict(members_of(bundle))
    change(members)
    write_members(into / bundle.name, list(members.items()))
    shutil.copy(bundle.with_name("install.sh"), into)
    return into / bundle.name


# ---------------------------------------------------------------------------------------------------- a first install


def test_a_first_install(site, first):
    """Images, models, compose files and settings are in their places; then it starts, and tells where it is."""
    port = str(free_port())
    status, told = site.install(first, INGOT_CONSOLE_PORT=port)
    assert status == 0, told
    assert "http://127.0.0.1:8080/setup?code=once" in told
    assert (site.told / "images").read_text().split() == [f"ingot-{role}:1.0" for role in ROLES]
    assert site.release() == "1.0"
    assert (site.into / "compose.yaml").read_text() == "# 1.0\n"
    assert (site.into / "models" / "tiny" / "config.json").is_file()
    assert site.key.public.text in (site.into / "trusted.pub").read_text()
    assert (site.setting("INGOT_TAG"), site.setting("COMPOSE_FILE")) == ("1.0", "compose.yaml")
    assert (site.setting("INGOT_CONSOLE_PORT"), site.setting("INGOT_DOCKER_SOCKET")) == (port, "/run/docker.sock")
    assert site.calls(f"bundle trust {site.key.public.text}")
    assert not (site.into / ".staging").exists()
    assert not os.path.lexists(site.into / ".lock")


def test_the_log_is_for_its_owner_and_without_the_link(installed):
    """Whoever has the set-up link makes the administrator."""
    log = installed.into / "install.log"
    assert log.stat().st_mode & 0o077 == 0
    assert "is ready" in log.read_text()
    assert "/setup?code=" not in log.read_text()


def test_the_same_bundle_again_is_nothing_to_do(installed, first):
    """It is checked, and nothing is loaded, started or saved."""
    status, told = installed.again(first)
    assert status == 0, told
    assert [call for word in ("load", " up ", "backup") for call in installed.calls(word)] == []


def test_what_vanished_is_brought_back(installed, first):
    """A lost image and a damaged model are taken from the bundle again; what else was in the model's folder is kept."""
    tags = (installed.told / "images").read_text().replace("ingot-console:1.0\n", "")
    (installed.told / "images").write_text(tags)
    (installed.into / "models" / "tiny" / "config.json").write_text("{}")
    status, told = installed.again(first)
    assert status == 0, told
    assert [call.rsplit("/", 1)[1] for call in installed.calls("load")] == ["console.tar.zst"]
    models = installed.into / "models"
    assert (models / "tiny" / "config.json").stat().st_size > 2
    (aside,) = models.glob("tiny.before-1.0-*")
    assert (aside / "config.json").read_text() == "{}"
    assert not installed.calls("backup")


# ---------------------------------------------------------------------------------------------------- what is refused


def test_without_a_key_and_a_terminal(site, first):
    """Nobody can be asked whose signature is to be trusted."""
    status, told = site.run(first.with_name("install.sh"), first, "--into", site.into)
    assert status == BUNDLE
    assert "--public-key FILE" in told
    assert not site.calls("load")


def test_a_wrong_key(site, first):
    """Both are named, and nothing is loaded."""
    other = Key.generate().public
    status, told = site.run(first.with_name("install.sh"), first, "--into", site.into, "--public-key", other.text)
    assert status == BUNDLE
    assert site.key.public.id in told
    assert other.id in told
    assert not site.calls("load")


def test_another_key_at_an_upgrade(installed, tmp_path):
    """A bundle of another signer does not replace what is trusted, whatever key comes with it."""
    other = Key.generate()
    bundle = make(tmp_path / "other", "2.0", other)
    status, told = installed.again(bundle)
    assert status == BUNDLE
    assert installed.key.public.id in told
    status, told = installed.again(bundle, "--public-key", other.public.text)
    assert status == BUNDLE
    assert "trusted.pub" in told
    assert installed.release() == "1.0"
    assert not installed.calls("load")


@pytest.mark.parametrize(
    "name", ["compose/compose.yaml", "images/gate.tar.zst", "images/engine.tar.zst", "models/tiny/model.safetensors"]
)
def test_a_changed_file_is_named(site, first, tmp_path, name):
    """Nothing starts, and no image is loaded that was changed: of the gate's, which the signature is checked with on a
    machine that has no other, nothing is loaded at all."""

    def flip(members):
        members[name] = bytes([members[name][0] ^ 1]) + members[name][1:]

    bundle = changed(first, tmp_path / "evil", flip)
    status, told = site.install(bundle)
    assert status == BUNDLE
    assert f"{name} " in told
    assert not site.calls(" up ")
    loaded = {call.rsplit("/", 1)[1] for call in site.calls("load")}
    assert name.rpartition("/")[2] not in loaded
    assert bool(loaded) is (name != "images/gate.tar.zst")
    assert bool(site.calls("minisign")) is bool(loaded)


def tools(folder: Path, **scripts: str) -> Path:
    """A folder with programs of these names, each of which runs its script before the real one, or the stand-in."""
    folder.mkdir()
    for name, script in scripts.items():
        real = STUB / name if (STUB / name).exists() else shutil.which(name)
        (folder / name).write_text(f'#!/bin/sh\n{script}\nexec "{real}" "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def install_with(site: Site, bundle: Path, folder: Path) -> tuple[int, str]:
    arguments = (bundle, "--into", site.into, "--public-key", site.key.public.text)
    return site.run(bundle.with_name("install.sh"), *arguments, first_path=folder)


def test_an_image_is_loaded_while_the_next_is_checked(site, first, tmp_path):
    """The console's image is not loaded until the engine's is being checked, nor that checked until Docker begins."""
    wait = 'for _ in $(seq 200); do [ -e "$STUB/{0}" ] && break; sleep 0.1; done; [ -e "$STUB/{0}" ] || exit 1'
    checks = f'grep -q images/engine "$2" && ! grep -q images/console "$2" && {{ : >"$STUB/checks"; {wait}; }}'
    loads = f'case "$*" in load*console*) : >"$STUB/loads"; {wait.format("checks")} ;; esac'
    folder = tools(tmp_path / "tools", sha256sum=checks.replace("{0}", "loads"), docker=loads)
    status, told = install_with(site, first, folder)
    assert status == 0, told
    assert (site.told / "checks").exists()


def test_an_image_is_loaded_only_once_it_has_its_hash(site, first, tmp_path):
    """What Docker is given is what was signed, at the moment it is given."""
    given = '[ "$1" != load ] || sha256sum "$3" >>"$STUB/given"'
    status, told = install_with(site, first, tools(tmp_path / "tools", docker=given))
    assert status == 0, told
    signed = (site.into / "current" / "SHA256SUMS").read_text().split()
    sums = [line.split()[0] for line in (site.told / "given").read_text().splitlines()]
    assert len(sums) == len(ROLES)
    assert set(sums) <= set(signed)


def test_a_load_that_fails_ends_the_install(site, first, tmp_path):
    """With Docker's own words; the same command goes on from there."""
    fails = 'case "$*" in load*console*) echo "no space left on device" >&2; exit 1 ;; esac'
    status, told = install_with(site, first, tools(tmp_path / "tools", docker=fails))
    assert status == 1
    assert "no space left on device" in told
    assert not site.calls(" up ")
    assert not os.path.lexists(site.into / ".lock")
    status, told = site.install(first)
    assert status == 0, told
    assert "Reading" not in told


def test_a_refused_install_leaves_nobody_at_work(site, first, tmp_path):
    """Docker is still busy with the console's image when the engine's turns out to be changed."""

    def flip(members):
        members["images/engine.tar.zst"] = b"x" + members["images/engine.tar.zst"][1:]

    busy = 'case "$*" in load*console*) echo $$ >"$STUB/busy"; exec sleep 600 ;; esac'
    wait = 'until [ -s "$STUB/busy" ]; do sleep 0.1; done'
    wait = f'[ "$1" != -c ] || ! grep -q images/engine "$2" || grep -q images/console "$2" || {wait}'
    folder = tools(tmp_path / "tools", docker=busy, sha256sum=wait)
    status, _ = install_with(site, changed(first, tmp_path / "evil", flip), folder)
    assert status == BUNDLE
    assert not psutil.pid_exists(int((site.told / "busy").read_text()))


@pytest.mark.parametrize("name", ["bundle.env", "manifest.json", "install.sh", "SHA256SUMS"])
def test_a_changed_head_is_refused(site, first, tmp_path, name):
    """Of these four, SHA256SUMS is signed, and it has the others' hashes."""
    bundle = changed(first, tmp_path / "evil", lambda members: members.update({name: members[name] + b"#\n"}))
    status, told = site.install(bundle)
    assert status == BUNDLE
    assert name in told
    assert not site.calls(" up ")


def test_a_file_that_is_no_bundle(site, first, tmp_path):
    other = tmp_path / "holiday.tar"
    other.write_bytes(tar_of([(tarfile.TarInfo("beach.jpg"), b"")]))
    status, told = site.run(
        first.with_name("install.sh"), other, "--into", site.into, "--public-key", site.key.public.text
    )
    assert status == BUNDLE
    assert other.name in told


@pytest.mark.parametrize(
    ("file", "value", "text"),
    [
        ("version", "24.0.9", "24.0.9"),
        ("version", "4.9.3", "Podman"),
        ("compose", "2.19.1", "2.19.1"),
        ("endpoint", "tcp://10.0.0.7:2376", "tcp://10.0.0.7:2376"),
    ],
)
def test_a_docker_that_does_not_do(site, first, file, value, text):
    """Told before anything is touched: not even the folder is made."""
    site.say(file, value)
    status, told = site.install(first)
    assert status == MACHINE
    assert text in told
    assert not site.into.exists()


def test_a_bundle_for_another_processor(site, key, tmp_path):
    other = "aarch64" if os.uname().machine == "x86_64" else "x86_64"
    status, told = site.install(make(tmp_path / "stick", "1.0", key, machine=other))
    assert status == MACHINE
    assert other in told
    assert not site.calls("load")


def test_too_little_disk(site, key, tmp_path):
    """With what is needed and what is there; before anything is loaded."""
    site.say("free", str(3_000_000_000 // 1024))
    status, told = site.install(make(tmp_path / "stick", "1.0", key, image_bytes=2_000_000_000))
    assert status == MACHINE
    assert "12.2 GB" in told
    assert "2.9 GB" in told
    assert not site.calls("load")


def test_a_path_that_cannot_be_mounted(site, first):
    status, told = site.run(first.with_name("install.sh"), first, "--into", "/tmp/a:b")
    assert status == USAGE
    assert "/tmp/a:b" in told


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("setting", ["INGOT_CONSOLE_PORT", "INGOT_ENGINE_PORT"])
def test_a_port_that_a_program_has(site, first, setting, address):
    """The port and the setting are named, before anything is loaded; with another port the same goes on."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        taken = socket.create_server((address, 0), family=family)
    except OSError:
        pytest.skip(f"{address} cannot be had here")
    with taken:
        port = str(taken.getsockname()[1])
        status, told = site.install(first, **{setting: port})
        assert status == MACHINE
        assert re.search(rf"\b{port}\b.*ss -ltnp", told)
        assert f"{setting}={int(port) + 1} " in told
        assert not site.calls("load")
    status, told = site.install(first, **{setting: port})
    assert status == 0, told


def test_a_port_that_a_container_has(installed, second):
    """Docker knows whose it is: our own is no hindrance, another's is named."""
    port = installed.setting("INGOT_CONSOLE_PORT")
    installed.say(f"publishing-{port}", "web|/srv/web")
    status, told = installed.again(second)
    assert status == MACHINE
    assert re.search(rf"\b{port}\b.* container web\b", told)
    assert f"in {installed.into}/.env" in told
    installed.say(f"publishing-{port}", f"ingot-console-1|{installed.into}")
    status, told = installed.again(second)
    assert status == 0, told


@pytest.mark.parametrize("port", ["http", "127.0.0.1:8080", "123456"])
def test_a_port_that_is_none(site, first, port):
    status, told = site.install(first, INGOT_CONSOLE_PORT=port)
    assert status == USAGE
    assert f"'{port}'" in told


# ---------------------------------------------------------------------------------------------------------------- GPUs


def nvidia_smi(folder: Path, *rows: str) -> Path:
    folder.mkdir()
    printed = "\n".join(rows)
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\necho '{printed}'\n")
    (folder / "nvidia-smi").chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def for_gpu(tmp_path_factory: pytest.TempPathFactory, key: Key) -> Path:
    return make(tmp_path_factory.mktemp("gpu") / "stick", "1.0", key, architecture="sm_120")


def on_gpu(site: Site, bundle: Path, *rows: str) -> tuple[int, str]:
    tools = nvidia_smi(site.folder / "nvidia", *rows)
    script = bundle.with_name("install.sh")
    return site.run(script, bundle, "--into", site.into, "--public-key", site.key.public.text, first_path=tools)


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has an NVIDIA driver")
def test_a_bundle_for_a_gpu_where_there_is_none(site, for_gpu):
    status, told = site.install(for_gpu)
    assert status == MACHINE
    assert "12.0 (sm_120)" in told
    assert "nvidia-smi" in told
    assert not site.calls("load")


def test_a_bundle_for_another_gpu(site, for_gpu):
    """What was found stands beside what is needed."""
    status, told = on_gpu(site, for_gpu, "9.0, GPU-aa, NVIDIA H200")
    assert status == MACHINE
    assert "12.0 (sm_120)" in told
    assert "NVIDIA H200" in told
    assert not site.calls("load")


def test_a_docker_without_gpu_support(site, for_gpu):
    """Docker itself is asked, before anything is loaded."""
    site.say("gpu", 'could not select device driver "" with capabilities: [[gpu]]')
    status, told = on_gpu(site, for_gpu, "12.0, GPU-aa, NVIDIA RTX PRO 6000")
    assert status == MACHINE
    assert "could not select device driver" in told
    assert "NVIDIA Container Toolkit" in told
    assert not site.calls("load")


def test_a_gpu_that_fits(site, for_gpu):
    """The engine's image has the name that compose.gpu.yaml asks for; of several GPUs it gets one that fits."""
    status, told = on_gpu(site, for_gpu, "8.9, GPU-aa, NVIDIA L4", "12.0, GPU-bb, NVIDIA RTX PRO 6000")
    assert status == 0, told
    assert site.setting("COMPOSE_FILE") == "compose.yaml:compose.gpu.yaml"
    assert (site.setting("INGOT_ARCH"), site.setting("INGOT_GPU")) == ("sm_120", "GPU-bb")
    assert site.setting("INGOT_ENGINE_MEMORY") is None
    assert "ingot-engine:1.0-sm_120" in (site.told / "images").read_text().split()


# ------------------------------------------------------------------------------------------------------------ the rest


def test_models_alone(installed, tmp_path):
    """A bundle of models is copied into the models folder; nothing is restarted."""
    model = write_checkpoint(tmp_path / "source" / "more")
    create(Order(tmp_path / "more.tar", installed.key, [model]))
    status, told = installed.again(tmp_path / "more.tar")
    assert status == 0, told
    assert (installed.into / "models" / "more" / "config.json").is_file()
    assert not installed.calls(" up ")
    assert installed.release() == "1.0"


def test_a_large_bundle_of_models_is_not_read_for_what_it_lacks(installed, tmp_path):
    """It has no install.sh; what is asked of its head is looked for in its head."""
    model = write_checkpoint(tmp_path / "source" / "more")
    with (model / "notes.bin").open("wb") as large:
        large.truncate(150_000_000)
    create(Order(tmp_path / "more.tar", installed.key, [model]))
    tools = tmp_path / "tools"
    tools.mkdir()
    cat = shutil.which("cat")
    lines = f'case $* in *more.tar) {cat} "$@" | tee -a {tmp_path}/read;; *) exec {cat} "$@";; esac'
    (tools / "cat").write_text(f"#!/bin/sh\n{lines}\n")
    (tools / "cat").chmod(0o755)
    (installed.into / "trusted.pub").write_text("another key\n")
    status, told = installed.run(installed.into / "install.sh", tmp_path / "more.tar", first_path=tools)
    assert status == BUNDLE, told
    assert (tmp_path / "read").stat().st_size < 120_000_000


def test_settings_of_the_environment_survive_the_newer_script(site, first):
    """The bundle's own install.sh goes on where another was started."""
    script = site.folder / "install.sh"
    script.write_text(first.with_name("install.sh").read_text() + "\n")
    port = str(free_port())
    arguments = (first, "--into", site.into, "--public-key", site.key.public.text)
    status, told = site.run(script, *arguments, INGOT_CONSOLE_PORT=port, INGOT_GATE_USER="0:999")
    assert status == 0, told
    assert "install.sh of 1.0" in told
    assert (site.setting("INGOT_CONSOLE_PORT"), site.setting("INGOT_GATE_USER")) == (port, "0:999")


def test_a_models_folder_is_relative_to_the_installation(site, first):
    """As it is for Compose, wherever install.sh was called."""
    status, told = site.install(first, INGOT_MODELS="./weights")
    assert status == 0, told
    assert (site.into / "weights" / "tiny" / "config.json").is_file()


def test_settings_keep_their_mode(installed, second):
    """Whoever made them readable for few meant that."""
    (installed.into / ".env").chmod(0o600)
    assert installed.again(second)[0] == 0
    assert (installed.into / ".env").stat().st_mode & 0o777 == 0o600


def test_a_bundle_beside_the_script_is_found_by_either_ending(site, first):
    """`.bundle` and `.ingot`, as the console finds them."""
    for ending in ("bundle", "ingot"):
        stick = site.folder / ending
        stick.mkdir()
        shutil.copy(first, stick / f"site.{ending}")
        shutil.copy(first.with_name("install.sh"), stick)
        status, told = site.run(stick / "install.sh", "--into", site.into, "--public-key", site.key.public.text)
        assert status == 0, told


def test_an_engine_that_cannot_be_asked_for_a_while(site, key, tmp_path):
    """What counts is for how long nobody answered, and not how long the load has taken in all."""
    bundle = make(tmp_path / "stick", "1.0", key, script=("silent_s=600 ", "silent_s=2 "))
    site.say("cut-off", "")
    status, told = site.install(bundle)
    assert status == 0, told


def test_help_is_the_head_of_the_script(site, first):
    status, told = site.run(first.with_name("install.sh"), "--help")
    assert status == 0
    assert "--rollback" in told
    assert re.search(r"^6: ", told, re.M)


def test_the_source_installs_nothing(site, first):
    """Without the gate's hash there is nothing to trust."""
    source = site.folder / "install.sh"
    source.write_text(install_script())
    status, told = site.run(source, first, "--into", site.into, "--public-key", site.key.public.text)
    assert status == BUNDLE
    assert "ingot bundle create" in told
