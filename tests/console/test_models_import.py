"""Importing models from a stick: bundles and folders as they lie there, through the console's own pages."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from litestar.di import Provide

from appliance.bundle import copying
from appliance.bundle.errors import BundleError
from appliance.bundle.pack import Order, create
from appliance.bundle.parts import Joined
from appliance.bundle.signature import Key
from appliance.bundle.trust import trust, trusted_keys
from console.app import create_app
from console.models import media, plain
from console.models.importing import Importing
from console.models.troubles import Place
from tests.tiny import write_checkpoint

ROOT = Path(__file__).parents[2]


@pytest.fixture
def stick(home):
    folder = home.root.parent / "media" / "STICK"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def app(config, control, stick):
    return create_app(replace(config, media=stick.parent), control, follow=False)


async def test_the_page_of_an_import_without_its_source_is_the_list(client):
    answer = await client.get("/models/-/import", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"].partition("#")[0]) == (303, "/models")


@pytest.fixture
def importing(app) -> Importing:
    return app.dependencies["importing"].dependency()


@pytest.fixture(scope="module")
def key() -> Key:
    return Key.generate()


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """Three small models, of which bundles are made."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("Tiny-A", "Tiny-B", "Tiny-C"):
        write_checkpoint(folder / name)
    return folder


def bundle(stick: Path, models: Path, key: Key | None, *names: str, out: str = "bundle.ingot", part_size=None) -> Path:
    create(Order(out=stick / out, key=key, models=[models / name for name in names], part_size=part_size))
    return stick / out


async def ended(importing: Importing, within_s: float = 20):
    """The newest import, once nothing is open any more."""
    async with asyncio.timeout(within_s):
        while any(row.is_open for row in importing.imports.rows):  # noqa: ASYNC110  another loop changes it
            await asyncio.sleep(0.01)
    return importing.imports.rows[0]


def standings(page: str) -> set[str]:
    """What can be done with each model that the page lists from the stick."""
    return set(re.findall(r'data-standing="([^"]+)"', page))


async def begin(client, source: str, *names: str, **more: str):
    return await client.post("/models/-/imports", data={"source": source, "model": list(names), **more})


def hidden(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(".")]


def same(one: Path, other: Path) -> bool:
    files = [path.relative_to(one) for path in one.rglob("*") if path.is_file()]
    return bool(files) and all((one / file).read_bytes() == (other / file).read_bytes() for file in files)


async def test_a_bundle_of_a_trusted_signer(client, home, importing, stick, models, key):
    """One click: the page lists it, the import runs, the model is whole, readable for the engine, and can be used."""
    trust(home, key.public)
    bundle(stick, models, key, "Tiny-A")
    page = (await client.get("/models")).text
    assert "bundle.ingot" in page
    assert f"signed by {key.public.id}, trusted" in page
    assert "Import<span" in page
    os.umask(0o077)
    answer = await begin(client, "STICK/bundle.ingot", "Tiny-A")
    assert answer.status_code == 200
    row = await ended(importing)
    assert (row.state, row.trouble) == ("done", None)
    assert same(models / "Tiny-A", home.models / "Tiny-A")
    for path in (home.models / "Tiny-A").iterdir():
        assert path.stat().st_mode & 0o777 == 0o644
    assert (home.models / "Tiny-A").stat().st_mode & 0o777 == 0o755
    page = (await client.get("/models")).text
    assert standings(page) == {"here"}
    assert 'data-import="done"' in page
    assert 'href="/profiles/-/new?model=Tiny-A"' in page


async def test_a_cut_bundle_with_two_models(client, home, importing, stick, models, key):
    """Its parts are one row; each model can be had alone, and the other stays where it is."""
    trust(home, key.public)
    bundle(stick, models, key, "Tiny-B", "Tiny-C", part_size=200_000)
    page = (await client.get("/models")).text
    assert page.count('class="card bundle"') == 1
    assert "in 6 parts" in page
    await begin(client, "STICK/bundle.ingot.001", "Tiny-C")
    assert (await ended(importing)).state == "done"
    assert same(models / "Tiny-C", home.models / "Tiny-C")
    assert not (home.models / "Tiny-B").exists()


@pytest.mark.parametrize("gone", ["001", "003", "006"])
async def test_a_missing_part_is_named(client, stick, models, key, gone):
    bundle(stick, models, key, "Tiny-B", "Tiny-C", part_size=200_000)
    (stick / f"bundle.ingot.{gone}").unlink()
    page = (await client.get("/models")).text
    assert "bundle-problem" in page
    assert f"bundle.ingot.{gone}" in page


async def test_nothing_is_imported_from_a_stranger(client, home, importing, stick, models, key):
    """A key that is not trusted, and no key at all: told on the page, and refused whatever is sent."""
    bundle(stick, models, key, "Tiny-A", out="strange.ingot")
    bundle(stick, models, None, "Tiny-B", out="bare.ingot")
    page = (await client.get("/models")).text
    assert key.public.id in page
    assert standings(page) == {"untrusted", "unsigned"}
    for source, name in (("STICK/strange.ingot", "Tiny-A"), ("STICK/bare.ingot", "Tiny-B")):
        assert (await begin(client, source, name, unsigned="yes")).status_code == 409
    assert importing.imports.rows == []
    assert not (home.models / "Tiny-A").exists()


async def test_a_key_is_trusted_by_a_person_who_saw_all_of_it(client, home, stick, models, key):
    """The page shows the whole key, since its number can be chosen by whoever makes one; what is trusted is what was
    shown, even if another stick lies there by now."""
    bundle(stick, models, key, "Tiny-A")
    page = (await client.get("/models/-/import", params={"source": "STICK/bundle.ingot"})).text
    shown = page.split('class="key-text"')[1].split("</code>")[0]
    assert key.public.text in shown.replace("<span>", "").replace("</span>", "")
    assert trusted_keys(home) == ()
    await client.post("/models/-/keys", data={"key": key.public.text, "source": "STICK/bundle.ingot"})
    assert trusted_keys(home) == (key.public,)
    assert 'data-signature="trusted"' in (await client.get("/models/-/import?source=STICK/bundle.ingot")).text
    await client.post(f"/models/-/keys/{key.public.id}/distrust")
    assert trusted_keys(home) == ()
    assert standings((await client.get("/models")).text) == {"untrusted"}


async def test_a_program_trusts_no_key(visitor, client, home, key):
    """Who has the console's token may do much; a key takes a person."""
    home.console_token.write_text("secret")
    visitor.cookies.clear()
    visitor.headers["authorization"] = "Bearer secret"
    answer = await visitor.post("/models/-/keys", data={"key": key.public.text})
    assert answer.status_code == 403
    assert trusted_keys(home) == ()


async def test_only_names_of_the_listing(client):
    """What a browser sends is looked up in the listing, never opened."""
    assert (await begin(client, "", "Tiny-A")).status_code == 404
    for source in ("../ingot-home/ingot.db", "/etc/passwd", "STICK/../../x.ingot", "STICK", "\0"):
        assert (await begin(client, source, "Tiny-A")).status_code == 404, source
        assert (await client.get("/models/-/import", params={"source": source})).status_code == 404, source


async def test_a_stick_full_of_traps(client, stick, models, key, tmp_path):
    """Pipes, devices, links, folders, junk and odd names: told or passed over, and never opened."""
    good = bundle(stick, models, key, "Tiny-A")
    os.mkfifo(stick / "pipe.ingot")
    (stick / "link.ingot").symlink_to(good)
    (stick / "folder.ingot").mkdir()
    (stick / "junk.ingot").write_bytes(b"\0" * 4096)
    (stick / "empty.ingot").touch()
    (stick / "<script>alert(1)<").mkdir()
    (stick / "cut.ingot").write_bytes(good.read_bytes()[:-700])
    Path(os.fsdecode(os.fsencode(stick) + b"/\xff\xfe.ingot")).touch()
    (stick / "turned\u202egnp.ingot").touch()
    (stick / "loop").symlink_to(stick)
    outside = tmp_path / "outside"
    write_checkpoint(outside)
    (stick / "model").symlink_to(outside)
    shutil.copytree(models / "Tiny-B", stick / "linked")
    (stick / "linked" / "extra.json").symlink_to("/etc/passwd")
    async with asyncio.timeout(20):  # a pipe that was opened would be waited for without end
        answer = await client.get("/models")
    assert answer.status_code == 200
    assert "<script>alert" not in answer.text
    for said in (
        "pipe.ingot",
        "link.ingot",
        "junk.ingot",
        "cut.ingot",
        "turned\\u202egnp.ingot",
        "extra.json",
    ):
        assert any(said in problem for problem in answer.text.split('class="bundle-problem"')[1:]), said
    assert "outside" not in answer.text
    for source in ("STICK/linked", "STICK/pipe.ingot", "STICK/junk.ingot"):
        assert (await begin(client, source, "linked", unsigned="yes")).status_code == 409


async def test_a_medium_that_does_not_answer(client, importing, monkeypatch):
    """The page comes all the same and says so; an import is refused in words."""
    release = threading.Event()
    monkeypatch.setattr("console.models.arrivals.PATIENCE_S", 0.1)
    monkeypatch.setattr("console.models.import_routes.PATIENCE_S", 0.1)
    monkeypatch.setattr(media, "look", lambda folder: release.wait(10) and media.Sight(folder))
    page = await client.get("/models")
    assert page.status_code == 200
    assert 'role="status"' in page.text.split('id="media"')[1]
    answer = await begin(client, "STICK/bundle.ingot", "Tiny-A")
    assert answer.status_code == 503
    assert str(importing.arrivals.folder) in answer.text
    release.set()


@pytest.mark.parametrize(
    ("control_kind", "said"),
    [("process", "Set <code>INGOT_MEDIA</code>"), ("docker", "INGOT_MEDIA_PROPAGATION=rslave")],
)
async def test_no_media_folder(config, control, visitor, client, stick, control_kind, said):
    """What to do about it depends on whether the console runs in a container."""
    app = create_app(replace(config, media=stick / "none", engine_control=control_kind), control, follow=False)
    context = await cast(Provide, app.dependencies["importing"]).dependency().parts.media()
    assert context["stock"].sight.problem == "missing"
    from console.pages import environment

    html = environment().get_template("models/media.html").render(**context)
    assert said in html


async def test_an_empty_stick(client, stick):
    page = (await client.get("/models")).text
    assert 'class="empty"' in page
    assert "Empty: <code>STICK</code>" in page


async def test_a_name_that_is_taken(client, home, importing, stick, models, key):
    """Another model keeps its name; the new one comes under another, and can be told from it."""
    trust(home, key.public)
    write_checkpoint(home.models / "Tiny-A", family="llama")
    (home.models / "Tiny-A" / "config.json").write_text("{}")
    bundle(stick, models, key, "Tiny-A")
    assert standings((await client.get("/models")).text) == {"taken"}
    assert (await begin(client, "STICK/bundle.ingot", "Tiny-A")).status_code == 409
    detail = (await client.get("/models/-/import", params={"source": "STICK/bundle.ingot"})).text
    assert 'value="Tiny-A-2"' in detail
    await begin(client, "STICK/bundle.ingot", "Tiny-A", name="Tiny-A-2")
    assert (await ended(importing)).state == "done"
    assert same(models / "Tiny-A", home.models / "Tiny-A-2")
    assert (home.models / "Tiny-A" / "config.json").read_text() == "{}"
    assert hidden(home.models) == []


async def test_names_that_no_model_may_have(client, home, stick, models, key):
    trust(home, key.public)
    bundle(stick, models, key, "Tiny-A")
    for name in ("../x", "a/b", ".hidden", "-x", "a b", "é", "x" * 101):
        assert (await begin(client, "STICK/bundle.ingot", "Tiny-A", name=name)).status_code == 422, name


async def test_comparing_with_what_is_here(client, home, importing, stick, models, key):
    """A model that was copied by hand: the same names and sizes are no proof of the same content, until it was read."""
    trust(home, key.public)
    bundle(stick, models, key, "Tiny-A")
    shutil.copytree(models / "Tiny-A", home.models / "Tiny-A")
    assert standings((await client.get("/models")).text) == {"alike"}
    await client.post("/models/-/comparisons", data={"source": "STICK/bundle.ingot", "model": "Tiny-A"})
    assert (await ended(importing)).state == "done"
    assert standings((await client.get("/models")).text) == {"here"}
    weights = home.models / "Tiny-A" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert standings((await client.get("/models")).text) == {"alike"}
    await client.post("/models/-/comparisons", data={"source": "STICK/bundle.ingot", "model": "Tiny-A"})
    row = await ended(importing)
    assert row.state == "failed"
    assert row.trouble.code == "differs"
    assert "model.safetensors" in row.trouble.text


async def test_a_folder_that_nobody_signed(client, home, importing, stick, models):
    """It says that it is not signed, and is imported only when that is confirmed; then as carefully as a bundle."""
    shutil.copytree(models / "Tiny-B", stick / "Tiny-B")
    (stick / "Tiny-B" / "sub").mkdir()
    (stick / "Tiny-B" / "sub" / "more.json").write_text("{}")
    (stick / "Tiny-B" / ".cache").write_text("x")
    page = (await client.get("/models")).text
    assert standings(page) == {"folder"}
    assert (await begin(client, "STICK/Tiny-B", "Tiny-B")).status_code == 422
    await begin(client, "STICK/Tiny-B", "Tiny-B", unsigned="yes")
    row = await ended(importing)
    assert (row.state, row.signed_by) == ("done", "")
    assert same(home.models / "Tiny-B" / "sub", stick / "Tiny-B" / "sub")
    assert not (home.models / "Tiny-B" / ".cache").exists()
    assert (home.models / "Tiny-B" / "sub").stat().st_mode & 0o777 == 0o755


def test_what_the_disk_gives_back_is_compared(home, models, monkeypatch):
    """A disk that loses a bit between writing and reading: told, and nothing stays."""
    copy = plain._copy

    def lossy(source: Path, destination: Path, *rest):
        digest = copy(source, destination, *rest)
        if source.suffix == ".safetensors":
            content = bytearray(destination.read_bytes())
            content[100] ^= 1
            destination.write_bytes(content)
        return digest

    monkeypatch.setattr(plain, "_copy", lossy)
    with pytest.raises(BundleError, match=r"model\.safetensors") as caught:
        plain.copy_folder(models / "Tiny-A", home.models / "Tiny-A", copying.silent, threading.Event())
    assert caught.value.code == "damaged"
    assert os.listdir(home.models) == []


async def test_a_damaged_bundle_leaves_nothing(client, home, importing, stick, models, key):
    trust(home, key.public)
    path = bundle(stick, models, key, "Tiny-A")
    content = bytearray(path.read_bytes())
    content[-5000] ^= 1
    path.write_bytes(content)
    await begin(client, "STICK/bundle.ingot", "Tiny-A")
    row = await ended(importing)
    assert row.state == "failed"
    assert row.trouble.code == "damaged"
    assert ";" not in row.trouble.text
    assert os.listdir(home.models) == []


def failing_read(number: int, after: int) -> Callable[..., int]:
    """Reads of the medium that fail once `after` bytes have been read."""
    read_into, seen = Joined.read_into, 0

    def read(self, buffer, at):
        nonlocal seen
        seen += len(buffer)
        if seen > after:
            raise OSError(number, f"bundle.ingot cannot be read: {os.strerror(number)}")
        return read_into(self, buffer, at)

    return read


async def test_a_stick_that_is_pulled(client, home, importing, stick, models, key, monkeypatch):
    """Told in words; nothing there looks like a model; plugged in again, the import goes on and ends well."""
    trust(home, key.public)
    bundle(stick, models, key, "Tiny-A")
    with monkeypatch.context() as patch:
        patch.setattr(Joined, "read_into", failing_read(errno.ENODEV, 300_000))
        await client.get("/models")
        await begin(client, "STICK/bundle.ingot", "Tiny-A")
        row = await ended(importing)
    assert row.state == "failed"
    assert row.trouble.code == "gone"
    assert hidden(home.models)
    assert [name for name in os.listdir(home.models) if not name.startswith(".")] == []
    page = (await client.get("/models")).text
    assert "/models/-/leftovers/discard" in page
    await begin(client, "STICK/bundle.ingot", "Tiny-A")
    assert (await ended(importing)).state == "done"
    assert same(models / "Tiny-A", home.models / "Tiny-A")
    assert hidden(home.models) == []


async def test_what_is_left_can_be_deleted(client, home, importing, stick, models, key, monkeypatch):
    trust(home, key.public)
    bundle(stick, models, key, "Tiny-A")
    with monkeypatch.context() as patch:
        await client.get("/models")
        patch.setattr(Joined, "read_into", failing_read(errno.EIO, 300_000))
        await begin(client, "STICK/bundle.ingot", "Tiny-A", name="Other")
        row = await ended(importing)
    assert row.trouble.code == "unreadable"
    assert hidden(home.models) == [".incoming-Other-as"]
    await client.post("/models/-/leftovers/discard", data={"name": "Other"})
    assert hidden(home.models) == []


async def test_what_lies_hidden_is_never_taken_for_checked(client, home, importing, stick, models, key):
    """What an import left that was to be renamed has no bundle to be compared with: it is copied anew."""
    trust(home, key.public)
    bundle(stick, models, key, "Tiny-A")
    left = home.models / ".incoming-Other-as" / "Tiny-A"
    left.mkdir(parents=True)
    (left / "config.json").write_text("of a stranger")
    (left / "more.py").write_text("of a stranger")
    await begin(client, "STICK/bundle.ingot", "Tiny-A", name="Other")
    assert (await ended(importing)).state == "done"
    assert same(models / "Tiny-A", home.models / "Other")
    assert not (home.models / "Other" / "more.py").exists()
    assert hidden(home.models) == []


async def test_a_folder_of_too_many_files_is_not_half_imported(client, stick, models, monkeypatch):
    """Told on the page, and refused."""
    shutil.copytree(models / "Tiny-B", stick / "Tiny-B")
    monkeypatch.setattr(plain, "FILES", 2)
    problem = (await client.get("/models")).text.split('class="bundle-problem"')[1]
    assert "Tiny-B" in problem
    assert (await begin(client, "STICK/Tiny-B", "Tiny-B", unsigned="yes")).status_code == 409


async def test_what_bundles_list_is_bounded(client, stick, models, key, monkeypatch):
    """However many lie there, no more of their lists is in memory than was agreed on."""
    for name in "abc":
        bundle(stick, models, key, "Tiny-A", out=f"{name}.ingot")
    files = sum(path.is_file() for path in (models / "Tiny-A").rglob("*"))
    monkeypatch.setattr("console.models.arrivals.FILES_KEPT", 2 * files - 1)
    page = (await client.get("/models")).text
    assert page.count('data-standing="untrusted"') == 2
    assert "c.ingot" in page.split('class="bundle-problem"')[1]


def test_bundles_are_known_by_the_names_that_the_documents_give_them():
    """Whatever `--out` is shown with, whole or cut, is looked at on a stick."""
    text = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    names = {name.rpartition("/")[2] for name in re.findall(r"bundle create [^`]*?--out ([^\s`,]+)", text)}
    assert names
    for name in names:
        assert media.BUNDLE.fullmatch(name), name
        assert media.BUNDLE.fullmatch(f"{name}.001"), name


async def test_a_disk_that_fills_up(client, home, importing, stick, models, key, monkeypatch):
    """Told with figures, and given its room back, since the database lives there too."""
    trust(home, key.public)
    bundle(stick, models, key, "Tiny-A")
    written, write = 0, os.write

    def full(handle, piece):
        nonlocal written
        written += len(piece)
        if written > 300_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(handle, piece)

    with monkeypatch.context() as patch:
        patch.setattr("appliance.bundle.install.os.write", full)
        await begin(client, "STICK/bundle.ingot", "Tiny-A")
        row = await ended(importing)
    assert row.state == "failed"
    assert row.trouble.code == "disk-full"
    assert os.listdir(home.models) == []


async def test_too_little_room_is_told_before(client, home, importing, stick, models, key, monkeypatch):
    trust(home, key.public)
    bundle(stick, models, key, "Tiny-A")
    monkeypatch.setattr(Place, "free", property(lambda place: 300 << 20))
    monkeypatch.setattr("console.models.choices.SPARE", 300 << 20)
    page = (await client.get("/models")).text
    assert standings(page) == {"no-room"}
    assert (await begin(client, "STICK/bundle.ingot", "Tiny-A")).status_code == 507
