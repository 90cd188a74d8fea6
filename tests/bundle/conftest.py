"""A key, a model, and a bundle of it; and how a bundle is changed by somebody who means harm."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from click.testing import Result

from appliance.bundle import checksums, facts, tar_header
from appliance.bundle.errors import BundleError
from appliance.bundle.manifest import Manifest
from appliance.bundle.pack import Order, create
from appliance.bundle.signature import Key
from tests.bundle.install_site import Site, make
from tests.tiny import write_checkpoint

Members = list[tuple[str, bytes]]


@pytest.fixture(scope="session")
def key() -> Key:
    return Key.generate()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "source" / "tiny")


@pytest.fixture
def packed(model: Path, key: Key, tmp_path: Path) -> Path:
    create(Order(tmp_path / "tiny.ingot", key, [model]))
    return tmp_path / "tiny.ingot"


@pytest.fixture
def cut(model: Path, key: Key, tmp_path: Path) -> list[Path]:
    """The same model in parts of 100,000 bytes."""
    create(Order(tmp_path / "cut.ingot", key, [model], part_size=100_000))
    return sorted(tmp_path.glob("cut.ingot.*"))


@contextmanager
def refusal(
    code: str, *codes: str, names: tuple[str, ...] = (), kind: type[BundleError] = BundleError
) -> Iterator[None]:
    """The body is refused with one of the codes, and the text has the names."""
    with pytest.raises(kind) as caught:
        yield
    assert caught.value.code in (code, *codes), caught.value
    assert all(name in str(caught.value) for name in names), caught.value


def code_of(done: Result) -> str:
    """What a command was refused with."""
    return getattr(done.exception and done.exception.__cause__, "code", "")


def members_of(path: Path) -> Members:
    with tarfile.open(path) as bundle:
        return [(member.name, bundle.extractfile(member).read()) for member in bundle]


def write_members(path: Path, members: Members) -> None:
    """As a bundle is written, whatever the members."""
    made = re.search(rb'"created":(\d+)', dict(members)["manifest.json"])
    mtime = int(made[1]) if made else 1
    written = (
        tar_header.pack(tar_header.Header(n, len(raw), mtime)) + raw + bytes(-len(raw) % 512) for n, raw in members
    )
    path.write_bytes(b"".join(written) + tar_header.END)


def resigned(path: Path, key: Key, change: Callable[[dict[str, bytes], Manifest], Manifest]) -> None:
    """What an attacker with a key of his own can do: change members and manifest, and sign that. `change` may alter the
    members in place, and says which manifest goes with them."""
    members = dict(members_of(path))
    manifest = change(members, msgspec.json.decode(members["manifest.json"], type=Manifest))
    members["manifest.json"] = msgspec.json.encode(manifest) + b"\n"
    members["bundle.env"] = facts.encode(manifest)
    sign_members(members, key, [(file.path, file.sha256) for file in manifest.files])
    write_members(path, list(members.items()))


def sign_members(members: dict[str, bytes], key: Key, rows: list[tuple[str, str]]) -> None:
    head = [(name, hashlib.sha256(members[name]).hexdigest()) for name in ("manifest.json", "bundle.env")]
    members["SHA256SUMS"] = checksums.encode([*head, *rows])
    members["SHA256SUMS.minisig"] = key.sign(members["SHA256SUMS"], "ours")
    members["signer.pub"] = str(key.public).encode()


def infos_of(path: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    """The members of a bundle, to be changed and written by `tar_of`."""
    with tarfile.open(path) as bundle:
        return [(member, bundle.extractfile(member).read()) for member in bundle]


def tar_of(members: list[tuple[tarfile.TarInfo, bytes]], tar_format: Literal[0, 1, 2] = tarfile.USTAR_FORMAT) -> bytes:
    """What tar itself can hold, and a bundle must not; what a bundle holds comes out as it was."""
    raw = io.BytesIO()
    for member, content in members:
        raw.write(member.tobuf(tar_format) + content + bytes(-len(content) % 512))
    return raw.getvalue() + tar_header.END


@pytest.fixture
def site(tmp_path: Path, key: Key) -> Site:
    return Site(tmp_path, key)


@pytest.fixture(scope="session")
def first(tmp_path_factory: pytest.TempPathFactory, key: Key) -> Path:
    return make(tmp_path_factory.mktemp("first") / "stick", "1.0", key)


@pytest.fixture(scope="session")
def second(tmp_path_factory: pytest.TempPathFactory, key: Key) -> Path:
    return make(tmp_path_factory.mktemp("second") / "stick", "2.0", key)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory, key: Key, first: Path) -> Site:
    made = Site(tmp_path_factory.mktemp("prepared"), key)
    status, told = made.install(first)
    assert status == 0, told
    (made.told / "calls").unlink()
    return made


@pytest.fixture
def installed(site: Site, prepared: Site) -> Site:
    """With the first bundle: a copy, for in an installation nothing says where it lies. Its containers know."""
    site.told.rmdir()
    shutil.copytree(prepared.folder, site.folder, symlinks=True, dirs_exist_ok=True)
    site.say("running", str(site.into))
    return site
