"""What install.sh promises a site without a network: a real bundle, and a daemon in a namespace with only a loopback.
The tests build on each other, in the order in which they stand."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import tiny
from tests.bundle.carried_pack import written
from tests.container.airgap import AirGap
from tests.container.deployment import ENGINE
from tests.running import INGOT, wait_for

FIRST_TOKEN_S = 90
NEXT_MIGRATION = '''\
"""One table more than the version before."""

import sqlalchemy as sa
from alembic import op

revision = "9999"
down_revision = "{head}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table("later", sa.Column("id", sa.Integer(), nullable=False), sa.PrimaryKeyConstraint("id"))
'''
PROFILE = """\
schema: 1
name: {name}
model: {{path: small}}
max-model-len: 128
"""
# Signs up by the set-up link, and makes an API key on the Access page.
MAKE_KEY = """\
import re, sys
import httpx
link = sys.argv[1]
with httpx.Client(base_url=link.split("/setup")[0], follow_redirects=True, trust_env=False, timeout=30) as browser:
    form = {"code": link.split("code=")[1], "name": "admin", "password": "correct horse battery"}
    browser.post("/setup", data=form).raise_for_status()
    made = browser.post("/access/keys", data={"name": "made before"})
    made.raise_for_status()
    browser.post("/access/require-key").raise_for_status()
    print("key:", re.search(r"ingot-[A-Za-z0-9_-]{20,}", made.text)[0])
"""


# The engine's image takes so long to load at most, once Docker has all of it.
LAST_IMAGE_S = 20.0


@dataclass
class Site:
    """The machine without a network, what was carried to it, and what the tests learn on the way."""

    gap: AirGap
    first: Path
    second: Path
    key: Path
    into: Path
    link: str = ""
    api_key: str = ""

    def command(self, bundle: Path) -> list[str | Path]:
        """As a person types it at a first install."""
        return ["sh", bundle.with_name("install.sh"), bundle, "--into", self.into, "--public-key", self.key]

    def install(self, bundle: Path, *more: str) -> tuple[int, str]:
        done = self.gap.run([*self.command(bundle), *more], timeout_s=300)
        return done.returncode, done.stdout

    def again(self, *arguments: str | Path) -> tuple[int, str]:
        done = self.gap.run(["sh", self.into / "install.sh", *arguments], timeout_s=300)
        return done.returncode, done.stdout

    def forget_images(self) -> None:
        """Remove all images. Docker finishes loading one whose client has ended, so wait until no more has come for a
        while."""
        last = time.monotonic()
        while time.monotonic() - last < LAST_IMAGE_S:
            for image in set(self.gap.docker("images", "--quiet").split()):
                self.gap.docker("image", "rm", "--force", image)
                last = time.monotonic()
            time.sleep(0.5)

    def profiles(self) -> str:
        return self.gap.docker("exec", "ingot-console-1", "ingot", "profile", "list")

    def make_profile(self, name: str) -> None:
        command = ["docker", "exec", "-i", "ingot-console-1", "ingot", "profile", "import", "--yes", "-"]
        done = self.gap.run(command, text=PROFILE.format(name=name))
        assert done.returncode == 0, done.stdout

    def started_at(self) -> str:
        return self.gap.docker("inspect", "--format", "{{.State.StartedAt}}", ENGINE)

    def ask(self) -> int:
        """How many tokens the bundled model generated, asked with the key where there is one."""
        status, _ = self.gap.fetch("http://127.0.0.1:8000/v1/models")
        assert status == (401 if self.api_key else 200)
        body = '{"model": "ingot-guide", "messages": [{"role": "user", "content": "What is sealed?"}], "max_tokens": 8}'
        done = self.gap.run([sys.executable, "-c", ASK, body, self.api_key])
        assert done.returncode == 0, done.stdout
        return int(done.stdout)


ASK = """\
import json, sys, urllib.request
header = {"content-type": "application/json", "authorization": "Bearer " + sys.argv[2]}
request = urllib.request.Request("http://127.0.0.1:8000/v1/chat/completions", sys.argv[1].encode(), header)
with urllib.request.urlopen(request, timeout=30) as answer:
    print(json.load(answer)["usage"]["completion_tokens"])
"""


def _run(*command: str | Path, folder: Path | None = None) -> str:
    done = subprocess.run([*command], capture_output=True, text=True, timeout=600, cwd=folder)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout


def _next_console(tag: str, folder: Path) -> str:
    """The console of a version to come: with a step more of the database's schema."""
    image = f"ingot-console:{tag}-next"
    found = "import migrations; print(migrations.__path__[0], *migrations.REVISIONS)"
    asked = _run("docker", "run", "--rm", "--entrypoint", "python", f"ingot-console:{tag}", "-c", found)
    where, *revisions = asked.split()
    folder.mkdir()
    (folder / "9999_later.py").write_text(NEXT_MIGRATION.format(head=revisions[-1]))
    (folder / "__init__.py").write_text(f"REVISIONS = {(*revisions, '9999')}\nHEAD = REVISIONS[-1]\n")
    lines = [
        f"FROM ingot-console:{tag}",
        f"COPY --chmod=644 9999_later.py {where}/versions/",
        f"COPY --chmod=644 __init__.py {where}/",
        "USER 0",
        f"RUN rm -r {where}/__pycache__",  # bytecode in the images is not compared with its source
        "USER ingot",
    ]
    (folder / "Dockerfile").write_text("\n".join(lines))
    _run("docker", "build", "--tag", image, folder)
    return image


@pytest.fixture(scope="module")
def site(images: str, airgap: AirGap) -> Iterator[Site]:
    """Two bundles on the stick: of these images, and of a version to come."""
    folder = airgap.folder / "a stick"
    folder.mkdir()
    model = tiny.write_checkpoint(folder / "model" / "small")
    _run(*INGOT, "bundle", "key", folder / "signer", "--no-password")
    _run(*INGOT, "bundle", "key", folder / "other", "--no-password")
    bundles = []
    console = _next_console(images, folder / "next")
    releases: dict[str, list[str | Path]] = {"1.0": [], "2.0": ["--image", f"console={console}"]}
    for release, more in releases.items():
        (folder / release).mkdir()
        bundle = folder / release / "ingot.bundle"
        what: list[str | Path] = ["--tag", images, "--release", release, "--model", model, "--allow-stand-in", *more]
        _run(*INGOT, "bundle", "create", *what, "--sign", folder / "signer.key", "--out", bundle)
        bundles.append(bundle)
    first, second = bundles
    yield Site(airgap, first, second, folder / "signer.pub", airgap.folder / "the site")
    _run("docker", "image", "rm", console)


def _flip(bundle: Path, member: str) -> None:
    """One bit of a file in the bundle; done again, it is as it was."""
    with tarfile.open(bundle) as archive:
        at = archive.getmember(member).offset_data
    with bundle.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_a_wrong_key_is_refused(site):
    """Before anything is loaded; both keys are named."""
    other = site.key.with_name("other.pub")
    done = site.gap.run([*site.command(site.first)[:-1], other])
    assert done.returncode == 4, done.stdout
    assert site.gap.docker("images", "--quiet") == ""


def test_too_little_disk_is_refused(site):
    """On the disk of the installation, with figures; before anything is loaded."""
    small = site.gap.folder / "small"
    small.mkdir()
    _run("mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", small)
    try:
        command = ["sh", site.first.with_name("install.sh"), site.first, "--into", small, "--public-key", site.key]
        done = site.gap.run(command)
    finally:
        _run("umount", small)
    assert done.returncode == 3, done.stdout
    assert re.search(r"need [\d.]+ [MG]B; \S+ has [\d.]+ [MG]B free", done.stdout)
    assert site.gap.docker("images", "--quiet") == ""


def test_a_tampered_file_is_refused_by_name(site):
    """By the hash that was signed, and nothing starts. Images that have their hashes may be loaded by then."""
    _flip(site.first, "compose/compose.yaml")
    status, told = site.install(site.first)
    _flip(site.first, "compose/compose.yaml")
    assert status == 4, told
    assert "compose/compose.yaml in the bundle" in told
    assert site.gap.docker("ps", "--all", "--quiet") == ""
    site.forget_images()  # the tests after this begin on a fresh machine


def test_a_tampered_gate_image_is_refused(site):
    """It would check the signature. On a machine that has no other, install.sh knows its hash, and never loads it."""
    _flip(site.first, "images/gate.tar.zst")
    into = site.gap.folder / "another site"
    done = site.gap.run(
        ["sh", site.first.with_name("install.sh"), site.first, "--into", into, "--public-key", site.key]
    )
    _flip(site.first, "images/gate.tar.zst")
    assert done.returncode == 4, done.stdout
    assert "images/gate.tar.zst" in done.stdout
    assert site.gap.docker("images", "--quiet") == ""


def test_a_truncated_bundle_is_refused_at_once(site):
    """By its length, before anything is loaded."""
    whole = site.first.stat().st_size
    with site.first.open("r+b") as file:
        file.seek(whole - 4096)
        end = file.read()
        file.truncate(whole - 4096)
    began = time.monotonic()
    status, told = site.install(site.first)
    took = time.monotonic() - began
    with site.first.open("ab") as file:
        file.write(end)
    assert status == 4, told
    assert all(str(size) in told for size in (whole - 4096, whole))
    assert site.gap.docker("images", "--quiet") == ""
    assert took < 10


def test_an_interrupted_install_goes_on(site):
    """Killed with kill -9 while the engine is loaded: the second run reads nothing again and loads the rest. From its
    start to the first token it takes less than is promised."""
    output = site.gap.folder / "first.log"
    with output.open("wb") as out:
        command = [*site.gap.enter(), *map(str, site.command(site.first))]
        killed = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=site.gap.environment, start_new_session=True
        )
    wait_for("the engine's image is loaded", lambda: "engine image" in output.read_text(), 200, 0.05)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    before = time.monotonic()
    status, told = site.install(site.first)
    took = time.monotonic() - before
    assert status == 0, told
    assert "Reading" not in told
    assert re.findall(r"Loading the (\w+) image", told) == ["engine"]
    assert took < FIRST_TOKEN_S
    site.link = re.search(r"http://\S+/setup\?code=\S+", told)[0]
    print(f"installed, interrupted, and to the first token: {took:.0f} s after the restart")


def test_it_answers_without_a_network(site):
    """A real token; and the namespace leads nowhere."""
    assert site.ask() > 0
    assert not [name for name in site.gap.links() if name.startswith(("eth", "en", "wl"))]


def test_the_same_bundle_again_changes_nothing(site):
    before = site.started_at()
    status, told = site.install(site.first)
    assert status == 0, told
    assert site.started_at() == before


def test_an_upgrade_keeps_the_state(site):
    """Account, API key and profile of before are there; the database has the new version's schema."""
    made = site.gap.run([sys.executable, "-c", MAKE_KEY, site.link])
    assert made.returncode == 0, made.stdout
    site.api_key = made.stdout.split("key: ")[1].strip()
    site.make_profile("before")
    status, told = site.again(site.second)
    assert status == 0, told
    assert "before" in site.profiles()
    assert site.ask() > 0
    assert "ingot-engine:2.0" in site.gap.docker("ps", "--format", "{{.Image}}")


def test_a_bundle_of_packs_reaches_the_engine(site):
    """Carried to a machine that runs, in a bundle of their own; the engine finds it without a restart."""
    bundle = site.first.parent.parent / "packs.bundle"
    pack = written(bundle.parent / "packing").path
    key = bundle.parent / "signer.key"
    _run(*INGOT, "bundle", "create", "--pack", pack, "--sign", key, "--out", bundle)
    before = site.started_at()
    status, told = site.again(bundle)
    assert status == 0, told
    shown = site.gap.docker("exec", ENGINE, "ingot", "cache", "list", "--json")
    assert [one["path"] for one in json.loads(shown)["packs"]] == ["/cache-packs/chat-h100"]
    assert site.started_at() == before


def test_roll_back_brings_the_version_before_with_its_data(site):
    """And what was made since is in a backup: --rollback again brings it."""
    site.make_profile("since")
    status, told = site.again("--rollback", "--yes")
    assert status == 0, told
    profiles = site.profiles()
    assert "before" in profiles
    assert "since" not in profiles
    assert site.ask() > 0
    assert "ingot-engine:1.0" in site.gap.docker("ps", "--format", "{{.Image}}")
    status, told = site.again("--rollback", "--yes")
    assert status == 0, told
    assert "since" in site.profiles()
    assert site.ask() > 0


def test_uninstall(site):
    """The containers and images are gone, the data stays; --purge takes it as well."""
    status, told = site.again("--uninstall", "--yes")
    assert status == 0, told
    assert site.gap.docker("ps", "--all", "--quiet") == ""
    assert site.gap.docker("images", "--quiet") == ""
    assert "ingot_state" in site.gap.docker("volume", "ls")
    assert (site.into / "models" / "small" / "config.json").is_file()
    done = site.gap.run(
        ["sh", site.first.with_name("install.sh"), "--into", site.into, "--uninstall", "--purge", "--yes"]
    )
    assert done.returncode == 0, done.stdout
    assert "ingot_state" not in site.gap.docker("volume", "ls")
    assert not site.into.exists()
