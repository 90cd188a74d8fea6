"""The Backups page: made, downloaded, uploaded, checked, restored and deleted by requests."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
import tarfile
import threading
import time
from pathlib import Path

import pytest

from appliance.home import Home
from console.backups import create, reading, restore, routes, upload
from console.backups.after_restore import preview
from console.backups.errors import BackupError
from console.backups.folder import BackupFolder, incoming
from console.db import schema
from console.profiles.errors import UnderWay
from migrations import HEAD
from tests.console.backup_states import back_up, database, fill, put, rows


@pytest.fixture(autouse=True)
def _jobs_end_at_once(monkeypatch):
    """As they do but on a busy machine: an answer is the job's own, not the page of one under way."""
    monkeypatch.setattr(routes, "AT_ONCE_S", 60.0)


@pytest.fixture
async def made(client, console):
    """The name of a backup of the console's own state."""
    await client.post("/backups")
    (path,) = (console.home.root / "backups").iterdir()
    return path.name


async def test_a_backup_is_made_and_downloaded(client, console, made):
    """Readable by its owner only, never kept by the browser, and whole."""
    path = console.home.root / "backups" / made
    assert path.stat().st_mode & 0o077 == 0
    download = await client.get(f"/backups/{made}")
    assert download.headers["content-disposition"].startswith("attachment")
    assert download.headers["cache-control"] == "no-store"
    assert download.content == path.read_bytes()
    page = (await client.get("/backups")).text
    assert made in page
    assert "1 account" in page
    answer = await client.post(f"/backups/{made}/delete")
    assert made in _toast(answer.text)
    assert not path.exists()


async def test_launches_can_be_left_out(client, console):
    """The box says so."""
    put(console.home.launch("20261120-000000-0000") / "engine.log", b"log\n")
    await client.post("/backups", data={"launches": "no"})
    (path,) = (console.home.root / "backups").iterdir()
    with tarfile.open(path) as archive:
        assert not [name for name in archive.getnames() if name.startswith("launches/")]


def _toast(page: str) -> str:
    return re.search(r'class="toast toast-[^>]*>.*?</', page, re.S)[0]


async def test_a_check_says_what_it_found(client, console, made):
    """Whole, or what is wrong with which file."""
    answer = await client.post(f"/backups/{made}/check")
    assert answer.status_code == 200
    assert made in _toast(answer.text)
    path = console.home.root / "backups" / made
    path.write_bytes(path.read_bytes()[:-900])
    answer = await client.post(f"/backups/{made}/check")
    assert answer.status_code == 422


OTHERS = (
    "..%2fingot.db",
    "%2e%2e%2fingot.db",
    "nothing.db",
    ".hidden.db",
    "ingot.db-wal",
    "ingot-backup-1.tar.gz",
    "link.db",
)


async def test_only_backups_can_be_reached(client, console):
    """No name leads out of the folder, for whatever is asked."""
    put(console.home.root / "backups" / "ingot.db-wal", b"x")
    (console.home.root / "backups" / "link.db").symlink_to(console.home.database)
    for name in OTHERS:
        assert (await client.get(f"/backups/{name}")).status_code == 404, name
        assert (await client.get(f"/backups/{name}/restore")).status_code == 404, name
        for action in ("restore", "check", "delete"):
            assert (await client.post(f"/backups/{name}/{action}")).status_code == 404, (name, action)
    assert console.home.database.exists()


async def test_a_restore_brings_the_state_back(client, console, control, made):
    """Profiles, the active one and the engine's start; who was signed in stays so; the state before is kept."""
    before = rows(console.home)
    with database(console.home) as connection:
        connection.execute("INSERT INTO profiles VALUES (9, 'later', 1)")
    page = (await client.get(f"/backups/{made}/restore")).text
    assert "data-ends-requests" in page
    assert "data-signs-out" not in page
    answer = await client.post(f"/backups/{made}/restore")
    assert made in _toast(answer.text)
    assert rows(console.home) == before
    assert control.calls == ["restart"]
    assert len(list((console.home.root / "backups").iterdir())) == 2


async def test_a_restore_of_another_installation_signs_out(client, console, control, tmp_path, fresh_database):
    """The page says so before, and names who can sign in afterwards."""
    other = fill(Home.at(tmp_path / "other"), fresh_database, "other")
    folder = console.home.root / "backups"
    folder.mkdir()
    path = Path(shutil.copy(back_up(other), folder))
    page = (await client.get(f"/backups/{path.name}/restore")).text
    assert "data-signs-out" in page
    assert "other-admin" in page
    answer = await client.post(f"/backups/{path.name}/restore")
    assert "/sign-in" in str(answer.url)
    launches = (await client.get("/launches", follow_redirects=False)).headers["location"]
    assert launches.startswith("/sign-in")
    assert control.calls == ["restart"]


@pytest.mark.parametrize("kind", ["archive", "database"])
async def test_a_restore_says_which_keys_and_accounts_go(client, console, tmp_path, fresh_database, kind):
    """A key that has been revoked since the backup is none: what counts is what will be accepted afterwards."""
    fill(home := Home.at(tmp_path / "other"), fresh_database, "other", key="old")
    folder = console.home.root / "backups"
    folder.mkdir()
    if kind == "archive":
        path = Path(shutil.copy(back_up(home), folder))
    else:
        path = folder / f"before-{HEAD}-20261120-000000.db"
        schema.copy(home.database, path)
    with database(console.home) as connection:
        connection.execute("INSERT INTO revoked_keys (sha256, name, revoked) VALUES ('hash-old', 'old', 1)")
        connection.execute("INSERT INTO api_keys VALUES ('n', 'newer', 'ingot-abc', 'hash-newer', 1, 'me')")
    after = preview(console.home, path)
    assert (after.contents.api_keys, after.lost_keys, after.lost_accounts) == (0, ["newer"], ["admin"])
    assert (after.no_key_left, after.contents.accounts) == (True, ["other-admin"])
    page = (await client.get(f"/backups/{path.name}/restore")).text
    for warning in ("data-no-key-left", "data-lost-keys", "data-lost-accounts", "data-signs-out"):
        assert warning in page, warning
    with database(console.home) as connection:
        assert connection.execute("SELECT name FROM api_keys").fetchall() == [("newer",)]
    assert not [entry for entry in console.home.root.iterdir() if entry.name.startswith(".restore")]


async def test_a_restore_that_loses_nothing_warns_of_nothing(client, console, made):
    after = preview(console.home, console.home.root / "backups" / made)
    assert (after.lost_keys, after.lost_accounts, after.no_key_left) == ([], [], False)
    page = (await client.get(f"/backups/{made}/restore")).text
    assert "data-lost-" not in page
    assert "data-no-key-left" not in page


async def test_what_nobody_could_sign_in_to_is_refused(client, console, tmp_path, fresh_database):
    """A backup from before set-up is for the command."""
    other = fill(Home.at(tmp_path / "other"), fresh_database, "other")
    with database(other) as connection:
        connection.execute("DELETE FROM users")
    folder = console.home.root / "backups"
    folder.mkdir()
    path = Path(shutil.copy(back_up(other), folder))
    before = rows(console.home)
    answer = await client.post(f"/backups/{path.name}/restore")
    assert answer.status_code == 422
    assert rows(console.home) == before


async def test_a_copy_from_before_a_migration_is_listed_and_restored(client, console):
    """What the console made by itself is one of the backups."""
    name = f"before-{HEAD}-20261120-000000.db"
    folder = console.home.root / "backups"
    folder.mkdir()
    schema.copy(console.home.database, folder / name)
    page = (await client.get("/backups")).text
    assert name in page
    assert (await client.get(f"/backups/{name}/restore")).status_code == 200
    assert name in _toast((await client.post(f"/backups/{name}/restore")).text)


async def test_one_thing_at_a_time(client, console, made, monkeypatch):
    """While a backup is made, another and a restore are refused; the page shows how far it is, then what came of it."""
    go_on = threading.Event()
    create_ = create.create

    def slow(*arguments, report, **options):
        report(3 << 20, 4 << 20)
        go_on.wait(20)
        return create_(*arguments, report=report, **options)

    monkeypatch.setattr(create, "create", slow)
    monkeypatch.setattr(routes, "AT_ONCE_S", 0.05)
    await client.post("/backups")
    page = await _page_with(client, "3.0 MiB of 4.0 MiB")
    assert 'data-kind="backup"' in page
    for path in ("/backups", f"/backups/{made}/restore", f"/backups/{made}/check"):
        refused = await client.post(path)
        assert refused.status_code == 409
    go_on.set()
    assert "data-kind=" not in await _page_with(client, "callout-good")
    assert "callout-good" not in (await client.post("/backups/-/dismiss")).text


async def _page_with(client, text: str) -> str:
    async with asyncio.timeout(30):
        while text not in (page := (await client.get("/backups")).text):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return page


async def test_the_console_does_not_wait_for_a_long_backup(client, console, made, monkeypatch):
    """What is under way ends when the console does, and leaves no rest."""
    create_ = create.create

    def slow(*arguments, report, **options):
        def patient(done: int, total: int) -> None:
            time.sleep(0.3)
            report(done, total)

        return create_(*arguments, report=patient, **options)

    monkeypatch.setattr(create, "create", slow)
    monkeypatch.setattr(routes, "AT_ONCE_S", 0.05)
    for number in range(40):
        put(console.home.launch("20261120-000000-0000") / f"{number}.txt", b"x")
    await client.post("/backups")
    backup_jobs = client.app.dependencies["backup_jobs"].dependency()
    await backup_jobs.close()
    assert backup_jobs.job.failure.status == 503
    assert [path.name for path in (console.home.root / "backups").iterdir()] == [made]


@pytest.mark.parametrize("what", ["backup", "check"])
async def test_what_takes_long_can_be_cancelled(client, console, made, monkeypatch, what):
    """It ends at the next it reports, is no longer shown, and leaves no rest."""
    go_on = threading.Event()
    module, name = (create, "create") if what == "backup" else (restore, "check")
    real = getattr(module, name)

    def slow(*arguments, **options):
        *others, report = (*arguments, options.pop("report")) if "report" in options else arguments

        def patient(done: int, total: int) -> None:
            go_on.wait(20)
            report(done, total)

        return real(*others, report=patient, **options)

    monkeypatch.setattr(module, name, slow)
    monkeypatch.setattr(routes, "AT_ONCE_S", 0.05)
    assert (
        f'data-kind="{what}"' in (await client.post("/backups" if what == "backup" else f"/backups/{made}/check")).text
    )
    backup_jobs = client.app.dependencies["backup_jobs"].dependency()
    job = backup_jobs.cancel()
    assert job.cancelled
    go_on.set()
    assert await backup_jobs.settled(job, 10)
    assert (job.outcome, job.failure.status) == ("", 409)
    assert "data-kind=" not in (await client.post("/backups/-/cancel")).text
    assert [path.name for path in (console.home.root / "backups").iterdir()] == [made]


async def test_a_backup_that_cannot_be_deleted(client, console, made, monkeypatch):
    """Said as it is, with where to look."""
    monkeypatch.setattr(Path, "unlink", _read_only)
    answer = await client.post(f"/backups/{made}/delete")
    assert answer.status_code == 503
    assert "Read-only file system" in answer.text


def _read_only(path: Path, missing_ok: bool = False) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))


# ---- upload ---------------------------------------------------------------------------------------------------------


async def test_an_upload_is_larger_than_other_requests_may_be(client, console, tmp_path, fresh_database):
    """Past the console's 4 MiB: kept byte for byte, under a name of ours, whatever the sender called it."""
    other = fill(Home.at(tmp_path / "other"), fresh_database, "other")
    put(other.launch("20261120-000000-0000") / "engine.log", os.urandom(6 << 20))
    path = back_up(other)
    with path.open("rb") as file:
        answer = await client.post("/backups/-/upload", files={"file": ("../../evil.sh", file)})
    assert path.name in _toast(answer.text)
    (kept,) = (console.home.root / "backups").iterdir()
    assert (kept.name, kept.read_bytes()) == (path.name, path.read_bytes())
    assert kept.stat().st_mode & 0o077 == 0
    with path.open("rb") as file:
        await client.post("/backups/-/upload", files={"file": ("again", file)})
    assert len(list((console.home.root / "backups").iterdir())) == 2


@pytest.mark.parametrize("content", [b"", b"no backup", b"\x1f\x8b damaged"])
async def test_an_upload_that_is_no_backup(client, console, content):
    """Said, and nothing of it is kept."""
    answer = await client.post("/backups/-/upload", files={"file": ("x.tar.gz", content)})
    assert answer.status_code == 422
    assert list((console.home.root / "backups").iterdir()) == []


async def test_half_a_backup_is_not_listed(client, console, made):
    """What broke off on its way looks like a backup at its beginning: it is read to its end before it is kept."""
    path = console.home.root / "backups" / made
    content = path.read_bytes()
    path.unlink()
    answer = await client.post("/backups/-/upload", files={"file": (made, content[: len(content) // 2])})
    assert answer.status_code == 422
    assert list((console.home.root / "backups").iterdir()) == []


def _database(console, tmp_path, *, truncated: bool = False) -> bytes:
    schema.copy(console.home.database, tmp_path / "copy.db")
    content = (tmp_path / "copy.db").read_bytes()
    return content[: len(content) // 2] if truncated else content


async def test_half_a_database_is_not_kept(client, console, tmp_path):
    """Its rows are read as a restore would; a whole one is kept and can be restored."""
    half = _database(console, tmp_path, truncated=True)
    answer = await client.post("/backups/-/upload", files={"file": ("half.db", half)})
    assert answer.status_code == 422
    assert list((console.home.root / "backups").iterdir()) == []
    (tmp_path / "copy.db").unlink()
    await client.post("/backups/-/upload", files={"file": ("whole.db", _database(console, tmp_path))})
    (kept,) = (console.home.root / "backups").iterdir()
    assert kept.suffix == ".db"
    assert (await client.get(f"/backups/{kept.name}/restore")).status_code == 200


@pytest.mark.parametrize("kind", ["archive", "database"])
async def test_half_an_upload_is_to_be_uploaded_again(client, console, made, tmp_path, kind):
    """It was complete where it came from: no other backup is needed, and nothing has to be copied."""
    path = console.home.root / "backups" / made
    content = path.read_bytes() if kind == "archive" else _database(console, tmp_path)
    with incoming(BackupFolder(console.home), 0) as received:
        received.write(content[: len(content) // 2])
        with pytest.raises(BackupError) as refused:
            received.keep()
    assert refused.value.code == "incomplete"
    assert refused.value.remedy != reading.COPY_AGAIN
    assert len(list(path.parent.iterdir())) == 1


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0", b"no database at all" * 20, None])
async def test_half_a_database_that_was_copied_into_the_folder_is_marked(client, console, tmp_path, content):
    """Whoever copies by hand sees which files cannot be restored."""
    folder = console.home.root / "backups"
    name = f"before-{HEAD}-20261120-000000.db"
    put(folder / name, _database(console, tmp_path, truncated=True) if content is None else content)
    page = (await client.get("/backups")).text
    assert 'class="backup-bad"' in page
    assert f"/backups/{name}/restore" not in page
    assert (await client.get(f"/backups/{name}/restore")).status_code == 422


async def test_uploads_are_limited(client, console, monkeypatch):
    """By a stated size, announced or not, and by the disk."""
    monkeypatch.setattr(upload, "LIMIT_BYTES", 1000)
    answer = await client.post("/backups/-/upload", files={"file": ("x", bytes(2000))})
    assert answer.status_code == 413

    less = {"content-length": "5"}
    answer = await client.post("/backups/-/upload", files={"file": ("x", bytes(2000))}, headers=less)
    assert answer.status_code == 413
    monkeypatch.setattr(upload, "LIMIT_BYTES", 1 << 60)
    monkeypatch.setattr("console.backups.disk_space.free", lambda folder: 1 << 20)
    answer = await client.post("/backups/-/upload", files={"file": ("x", bytes(2000))})
    assert answer.status_code == 507
    assert not list((console.home.root / "backups").glob("*"))


async def test_an_upload_needs_a_form_of_our_own_pages(client, visitor, console):
    """Another site's form and a visitor are refused before a byte is read; what is no form is told so."""
    answer = await client.post(
        "/backups/-/upload", files={"file": ("x", b"x")}, headers={"Sec-Fetch-Site": "cross-site"}
    )
    assert answer.status_code == 403
    assert (await client.post("/backups/-/upload", content=b"x")).status_code == 422
    answer = await client.post(
        "/backups/-/upload", content=b"x", headers={"content-type": "multipart/form-data; boundary=x"}
    )
    assert answer.status_code == 400
    client.cookies.clear()
    answer = await client.post("/backups/-/upload", files={"file": ("x", b"x")}, headers={"Accept": "application/json"})
    assert answer.status_code == 401
    assert not (console.home.root / "backups").exists() or not list((console.home.root / "backups").iterdir())


async def test_an_activation_and_a_restore_keep_out_of_each_other(client, app, console, made):
    """A revision of the old database is never made the active one of the new."""
    dependencies = app.dependencies
    activator = dependencies["activator"].dependency()
    with activator.alone("p r1"):
        answer = await client.post(f"/backups/{made}/restore")
    assert answer.status_code == 409
    assert 'data-conflict="activation-running"' in answer.text
    with activator.alone("a restore"), pytest.raises(UnderWay):
        await activator.activate("p", 1)
