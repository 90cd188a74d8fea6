"""install.sh: what it decides, against a stand-in for Docker (stub/docker). tests/container/test_install.py has a real
one."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from appliance.bundle.entries import Entry
from appliance.bundle.manifest import BundledImage
from appliance.bundle.pack import Appliance, Order, Report, create
from appliance.bundle.signature import Key
from tests.bundle.conftest import members_of, tar_of, write_members
from tests.tiny import write_checkpoint

STUB = Path(__file__).with_name("stub")
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "appliance" / "bundle" / "install.sh"
ROLES = ("gate", "console", "engine")
USAGE, MACHINE, BUNDLE, ENGINE, LOCKED = 2, 3, 4, 5, 6


def make(
    folder: Path,
    release: str,
    key: Key,
    *,
    architecture: str = "",
    machine: str = os.uname().machine,
    part_size: int | None = None,
    image_bytes: int = 1000,
    temperature: str = "0",
) -> Path:
    """A bundle whose images are their tags: the stand-in loads no others."""

    def stage(staging: Path, report: Report) -> Appliance:
        entries = []
        for role in ROLES:
            path = staging / f"{role}.tar.zst"
            path.write_text(f"ingot-{role}:{release}\n")
            entries.append(Entry(f"images/{role}.tar.zst", path.stat().st_size, path))
        for name in ("compose.yaml", "compose.gpu.yaml", "compose.tls.yaml"):
            path = staging / name
            path.write_text(f"# {release}\n")
            entries.append(Entry(f"compose/{name}", path.stat().st_size, path))
        gate = hashlib.sha256((staging / "gate.tar.zst").read_bytes()).hexdigest()
        return Appliance(
            release=release,
            schema="0002",
            machine=machine,
            images=tuple(
                BundledImage(
                    role=role,  # type: ignore[arg-type]
                    tag=f"ingot-{role}:{release}",
                    source="",
                    id="",
                    size=image_bytes,
                    version="1",
                    variant=("cuda" if architecture else "cpu") if role == "engine" else "",
                    architecture=architecture if role == "engine" else "",
                )
                for role in ROLES
            ),
            entries=tuple(entries),
            installer=SCRIPT.read_text().replace("gate_sha256=''", f"gate_sha256='{gate}'"),
        )

    folder.mkdir(parents=True)
    model = folder / "source" / "tiny"
    if not model.exists():
        write_checkpoint(model)
        (model / "generation_config.json").write_text(f'{{"temperature": {temperature}}}')
    create(Order(folder / "bundle.tar", key, [model], part_size=part_size, stage_appliance=stage))
    shutil.rmtree(folder / "source")
    return folder / "bundle.tar"


@dataclass
class Site:
    """A machine with the stand-in, and an installation in a folder with a space in its name."""

    folder: Path
    key: Key
    into: Path = field(init=False)
    told: Path = field(init=False)

    def __post_init__(self) -> None:
        self.into = self.folder / "the site"
        self.told = self.folder / "told"
        self.told.mkdir()

    def say(self, name: str, value: str) -> None:
        (self.told / name).write_text(f"{value}\n")

    def run(self, script: Path, *arguments: str | Path, first_path: Path = STUB, **more: str) -> tuple[int, str]:
        """Exit status and everything that was printed."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("INGOT_", "DOCKER_"))}
        environment = kept | {
            "PATH": f"{first_path}:{STUB}:{kept['PATH']}",
            "STUB": str(self.told),
            "PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            **more,
        }
        done = subprocess.run(
            ["sh", script, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            env=environment,
        )
        return done.returncode, done.stdout

    def install(self, bundle: Path, **more: Any) -> tuple[int, str]:
        """As at a first install: with the script beside the bundle, and the signer's key."""
        script = bundle.with_name("install.sh")
        return self.run(script, bundle, "--into", self.into, "--public-key", self.key.public.text, **more)

    def again(self, *arguments: str | Path) -> tuple[int, str]:
        """As later: with the script of the installation, which knows where it is and whom it trusts."""
        return self.run(self.into / "install.sh", *arguments)

    def calls(self, word: str) -> list[str]:
        path = self.told / "calls"
        return [line for line in path.read_text().splitlines() if word in line] if path.exists() else []

    def setting(self, name: str) -> str | None:
        lines = (self.into / ".env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines).get(name)

    def release(self, link: str = "current") -> str:
        return os.readlink(self.into / link).removeprefix("releases/")


@pytest.fixture
def site(tmp_path: Path, key: Key) -> Site:
    return Site(tmp_path, key)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, key: Key) -> Path:
    return make(tmp_path_factory.mktemp("first") / "stick", "1.0", key)


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory, key: Key) -> Path:
    return make(tmp_path_factory.mktemp("second") / "stick", "2.0", key)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, key: Key, first: Path) -> Site:
    made = Site(tmp_path_factory.mktemp("prepared"), key)
    status, told = made.install(first)
    assert status == 0, told
    (made.told / "calls").unlink()
    return made


@pytest.fixture
def installed(site: Site, prepared: Site) -> Site:
    """With the first bundle: a copy, for nothing in an installation says where it lies."""
    site.told.rmdir()
    shutil.copytree(prepared.folder, site.folder, symlinks=True, dirs_exist_ok=True)
    return site


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
    status, told = site.install(first, INGOT_CONSOLE_PORT="8181")
    assert status == 0, told
    assert "1.0 is ready: the engine has generated a token." in told
    assert "http://127.0.0.1:8080/setup?code=once" in told
    assert (site.told / "images").read_text().split() == [f"ingot-{role}:1.0" for role in ROLES]
    assert site.release() == "1.0"
    assert (site.into / "compose.yaml").read_text() == "# 1.0\n"
    assert (site.into / "models" / "tiny" / "config.json").is_file()
    assert site.key.public.text in (site.into / "trusted.pub").read_text()
    assert (site.setting("INGOT_TAG"), site.setting("COMPOSE_FILE")) == ("1.0", "compose.yaml")
    assert (site.setting("INGOT_CONSOLE_PORT"), site.setting("INGOT_DOCKER_SOCKET")) == ("8181", "/run/docker.sock")
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
    assert "Nothing to do: 1.0 is installed" in told
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
    assert f"was signed with the key {site.key.public.id}, and trusted is {other.id}" in told
    assert not site.calls("load")


def test_another_key_at_an_upgrade(installed, tmp_path):
    """A bundle of another signer does not replace what is trusted, whatever key comes with it."""
    other = Key.generate()
    bundle = make(tmp_path / "other", "2.0", other)
    status, told = installed.again(bundle)
    assert status == BUNDLE
    assert f"trusted is {installed.key.public.id}" in told
    status, told = installed.again(bundle, "--public-key", other.public.text)
    assert status == BUNDLE
    assert "trusted.pub" in told
    assert installed.release() == "1.0"
    assert not installed.calls("load")


@pytest.mark.parametrize(
    "name", ["compose/compose.yaml", "images/gate.tar.zst", "images/engine.tar.zst", "models/tiny/model.safetensors"]
)
def test_a_changed_file_is_named(site, first, tmp_path, name):
    """Nothing starts, and of the images nothing but the gate's was loaded."""
    bundle = changed(first, tmp_path / "evil", lambda members: members.update({name: members[name] + b"x"}))
    status, told = site.install(bundle)
    assert status == BUNDLE
    assert f"{name} " in told
    assert not site.calls(" up ")
    assert {call.rsplit("/", 1)[1] for call in site.calls("load")} <= {"gate.tar.zst"}


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
    assert "no signed bundle" in told


@pytest.mark.parametrize(
    ("file", "value", "text"),
    [
        ("version", "24.0.9", "This is Docker 24.0.9, and 25 or newer is needed"),
        ("version", "4.9.3", "Podman"),
        ("compose", "2.19.1", "The compose plugin is 2.19.1, and 2.20 or newer is needed"),
        ("endpoint", "tcp://10.0.0.7:2376", "Docker is at tcp://10.0.0.7:2376"),
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
    assert f"is for {other} processors" in told
    assert not site.calls("load")


def test_too_little_disk(site, key, tmp_path):
    """With what is needed and what is there; before anything is loaded."""
    site.say("free", str(3_000_000_000 // 1024))
    status, told = site.install(make(tmp_path / "stick", "1.0", key, image_bytes=2_000_000_000))
    assert status == MACHINE
    assert "need 12.2 GB free" in told
    assert "has 2.9 GB" in told
    assert not site.calls("load")


def test_a_path_that_cannot_be_mounted(site, first):
    status, told = site.run(first.with_name("install.sh"), first, "--into", "/tmp/a:b")
    assert status == USAGE
    assert "/tmp/a:b" in told


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
    assert "compute capability 12.0 (sm_120), and there is no nvidia-smi here" in told
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


# --------------------------------------------------------------------------------------------------------------- parts


@pytest.fixture
def parts(tmp_path: Path, key: Key) -> list[Path]:
    """A bundle in parts."""
    bundle = make(tmp_path / "stick", "1.0", key, part_size=150_000)
    return sorted(bundle.parent.glob("bundle.tar.*"))


def test_parts(site, parts):
    """Named by their common name or by the first, or found beside the script."""
    assert len(parts) > 3
    status, told = site.run(parts[0].with_name("install.sh"), "--into", site.into, "--public-key", site.key.public.text)
    assert status == 0, told
    assert site.release() == "1.0"


@pytest.mark.parametrize("number", [1, -1])
def test_a_missing_part_is_named(site, parts, number):
    parts[number].unlink()
    status, told = site.install(parts[0].with_suffix(""))
    assert status == BUNDLE
    assert f"{parts[number].name} is missing" in told
    assert not site.calls(" up ")


def test_a_part_that_was_not_copied_whole_is_named(site, parts):
    parts[1].write_bytes(parts[1].read_bytes()[:-512])
    status, told = site.install(parts[0])
    assert status == BUNDLE
    assert f"{parts[1].name} has 149488 bytes where 150000 belong" in told


def test_a_damaged_part_is_named(site, parts):
    """And after it was copied again, the same goes on."""
    whole = parts[2].read_bytes()
    parts[2].write_bytes(whole[:70_000] + bytes([whole[70_000] ^ 1]) + whole[70_001:])
    status, told = site.install(parts[0])
    assert status == BUNDLE
    assert f"{parts[2].name} is damaged" in told
    parts[2].write_bytes(whole)
    status, told = site.install(parts[0])
    assert status == 0, told


def test_a_stick_that_is_pulled_out(site, parts):
    """Told as such, and not as a bundle that somebody changed; plugged in again, the same goes on."""
    tools = site.folder / "tools"
    tools.mkdir()
    lines = (
        f'case $* in *.003) echo "cat: $*: Input/output error" >&2; exit 1;; esac\nexec {shutil.which("cat")} "$@"\n'
    )
    (tools / "cat").write_text(f"#!/bin/sh\n{lines}")
    (tools / "cat").chmod(0o755)
    arguments = (parts[0], "--into", site.into, "--public-key", site.key.public.text)
    status, told = site.run(parts[0].with_name("install.sh"), *arguments, first_path=tools)
    assert status == 1
    assert f"{parts[2]}: Input/output error" in told
    status, told = site.install(parts[0])
    assert status == 0, told


# --------------------------------------------------------------------------------------------------------- interrupted


def test_an_interrupted_install_goes_on(site, first):
    """Killed while an image is loaded: what was loaded before is not loaded again, and nothing is read twice."""
    site.say("power-cut", "console.tar.zst")
    status, told = site.install(first)
    assert status != 0
    assert [call.rsplit("/", 1)[1] for call in site.calls("load")] == ["gate.tar.zst", "console.tar.zst"]
    (site.told / "calls").unlink()
    status, told = site.install(first)
    assert status == 0, told
    assert [call.rsplit("/", 1)[1] for call in site.calls("load")] == ["console.tar.zst", "engine.tar.zst"]
    assert "Reading" not in told


def test_one_at_a_time(installed, first):
    """A living process holds the lock; one that is gone, or was before a restart of the machine, does not."""
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    lock = installed.into / ".lock"
    lock.symlink_to(f"{os.getpid()} {stat[19]} {boot}")
    status, told = installed.again(first)
    assert status == LOCKED
    assert f"process {os.getpid()}" in told
    for stale in (f"{os.getpid()} 1 {boot}", f"{os.getpid()} {stat[19]} another-boot"):
        lock.unlink(missing_ok=True)
        lock.symlink_to(stale)
        assert installed.again(first)[0] == 0
        assert not os.path.lexists(lock)


# ------------------------------------------------------------------------------------------------ upgrade and roll back


def test_an_upgrade(installed, second):
    """The state is saved before anything new runs; the former version stays; the site's settings stay."""
    env = installed.into / ".env"
    env.write_text(
        env.read_text().replace("compose.yaml", "compose.yaml:compose.tls.yaml") + "INGOT_CONSOLE_PORT=9090\n"
    )
    status, told = installed.again(second)
    assert status == 0, told
    assert "Going on with the install.sh of 2.0." in told
    assert (installed.release(), installed.release("previous")) == ("2.0", "1.0")
    order = [call for call in installed.calls("compose --project-name") if " up " in call or "backup" in call]
    assert [("backup" in call) for call in order] == [True, False]
    saved = (installed.into / "releases" / "1.0" / "state").read_text().strip()
    assert (installed.into / "backups" / saved).read_text() == "a backup of 1.0\n"
    assert (installed.into / "backups" / saved).stat().st_mode & 0o077 == 0
    assert installed.setting("COMPOSE_FILE") == "compose.yaml:compose.tls.yaml"
    assert (installed.setting("INGOT_TAG"), installed.setting("INGOT_CONSOLE_PORT")) == ("2.0", "9090")
    assert "setup?code" not in told


def test_only_two_versions_are_kept(installed, second, tmp_path):
    """The one that runs and the one before; the images of older ones are removed, and no backup is."""
    assert installed.again(second)[0] == 0
    assert installed.again(make(tmp_path / "third", "3.0", installed.key))[0] == 0
    assert sorted(path.name for path in (installed.into / "releases").iterdir()) == ["2.0", "3.0"]
    assert not [tag for tag in (installed.told / "images").read_text().split() if tag.endswith(":1.0")]
    assert len(list((installed.into / "backups").iterdir())) == 2


def test_a_failed_upgrade_says_how_to_go_back(installed, second):
    """The cause, where the data is, and the command; which then brings the former version with its data."""
    installed.say("engine", "10")
    status, told = installed.again(second)
    assert status == ENGINE
    assert "the engine's last words" in told
    assert f"sh {installed.into}/install.sh --rollback" in told
    assert "setup?code" not in told
    installed.say("engine", "0")
    status, told = installed.again("--rollback", "--yes")
    assert status == 0, told
    assert installed.release() == "1.0"
    assert installed.setting("INGOT_TAG") == "1.0"
    assert (installed.told / "restored").read_text() == "a backup of 1.0\n"
    assert len(list((installed.into / "backups").iterdir())) == 2


def test_a_version_that_never_came_up_is_not_one_to_go_back_to(installed, second, tmp_path):
    """After a failed upgrade, a third version that works has the first as the one before."""
    installed.say("engine", "10")
    assert installed.again(second)[0] == ENGINE
    installed.say("engine", "0")
    assert installed.again(make(tmp_path / "third", "3.0", installed.key))[0] == 0
    assert (installed.release(), installed.release("previous")) == ("3.0", "1.0")


def test_back_and_forth(installed, second):
    """What the newer version had is saved before the way back, and --rollback again brings it."""
    assert installed.again(second)[0] == 0
    assert installed.again("--rollback", "--yes")[0] == 0
    status, told = installed.again("--rollback", "--yes")
    assert status == 0, told
    assert (installed.release(), installed.release("previous")) == ("2.0", "1.0")
    assert (installed.told / "restored").read_text() == "a backup of 2.0\n"


def test_an_interrupted_roll_back_goes_on(installed, second, first):
    """It is finished, not begun again; until then nothing else is installed."""
    assert installed.again(second)[0] == 0
    installed.say("no-restore", "")
    status, told = installed.again("--rollback", "--yes")
    assert status == 1
    assert "Nothing is lost" in told
    status, told = installed.again(first)
    assert status == 1
    assert "--rollback" in told
    (installed.told / "no-restore").unlink()
    (installed.told / "calls").unlink()
    status, told = installed.again("--rollback")
    assert status == 0, told
    assert installed.release() == "1.0"
    assert not installed.calls("backup create")


def test_a_console_that_cannot_make_a_backup(installed, second):
    """Then the volume is copied as it is, with nothing running, and put back the same way."""
    installed.say("no-backup", "")
    status, told = installed.again(second)
    assert status == 0, told
    assert "the whole state is copied as it is" in told
    (saved,) = (installed.into / "backups").glob("*.volume.tar")
    assert saved.read_text() == "the volume\n"
    assert installed.again("--rollback", "--yes")[0] == 0
    assert (installed.told / "restored").read_text() == "the volume\n"


def test_nothing_to_go_back_to(installed):
    status, told = installed.again("--rollback", "--yes")
    assert status == USAGE
    assert "no version before 1.0" in told


def test_another_bundle_of_the_same_release(installed, tmp_path):
    """Under one name there would be no way back."""
    status, told = installed.again(make(tmp_path / "twin", "1.0", installed.key, temperature="1"))
    assert status == BUNDLE
    assert "same release 1.0" in told
    assert installed.release() == "1.0"


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


def test_uninstall_keeps_the_data(installed, first):
    """And a later install takes it up, after a copy of it was made."""
    status, told = installed.again("--uninstall", "--yes")
    assert status == 0, told
    assert (installed.told / "images").read_text() == ""
    assert (installed.told / "volume").exists()
    assert (installed.into / "models" / "tiny" / "config.json").is_file()
    status, told = installed.install(first)
    assert status == 0, told
    assert list((installed.into / "backups").glob("ingot-found-*.volume.tar"))


def test_purge(installed):
    """Everything; only after a yes."""
    status, told = installed.again("--uninstall", "--purge")
    assert status == USAGE
    assert "--yes" in told
    assert installed.again("--uninstall", "--purge", "--yes")[0] == 0
    assert not installed.into.exists()
    assert not (installed.told / "volume").exists()


def test_help_is_the_head_of_the_script(site, first):
    status, told = site.run(first.with_name("install.sh"), "--help")
    assert status == 0
    assert "--rollback" in told
    assert "6: another install runs" in told


def test_the_source_installs_nothing(site, first):
    """Without the gate's hash there is nothing to trust."""
    status, told = site.run(SCRIPT, first, "--into", site.into, "--public-key", site.key.public.text)
    assert status == BUNDLE
    assert "ingot bundle create" in told
