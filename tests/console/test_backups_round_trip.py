"""What goes into a backup comes out of it: whole, byte for byte, while everything runs."""

from __future__ import annotations

import json
import os
import sqlite3
import tarfile
import threading
import time
from contextlib import closing
from pathlib import Path

import msgspec
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.home import Home
from console.backups import create, reading, restore
from migrations import HEAD
from tests.console.backup_states import back_up, bring_back, database, files, fill, put, refusal, replaced, rows

NAMES = st.from_regex(r"[a-z][a-z0-9._-]{0,20}", fullmatch=True)
LAUNCHES = st.dictionaries(
    st.from_regex(r"2026[0-9]{4}-[0-9]{6}-[0-9a-f]{4}", fullmatch=True),
    st.dictionaries(NAMES, st.binary(max_size=3000), min_size=1, max_size=4),
    max_size=4,
)


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    launches=LAUNCHES,
    answers=st.dictionaries(NAMES, st.binary(max_size=500), max_size=3),
    texts=st.lists(st.text(min_size=1).filter(lambda text: "\0" not in text), max_size=4, unique=True),
)
def test_whatever_is_in_the_state_comes_back(tmp_path_factory, fresh_database, launches, answers, texts):
    """Rows of every table, files of every launch, self-test answers, trusted keys, the active profile: into a new
    installation, and the same again from that one's own backup."""
    folder = tmp_path_factory.mktemp("round")
    first = fill(Home.at(folder / "first"), fresh_database)
    for launch, left in launches.items():
        for name, content in left.items():
            put(first.launch(launch) / name, content)
    for name, content in answers.items():
        put(first.selftest / name, content)
    with closing(database(first)) as connection:
        for number, text in enumerate(texts):
            connection.execute("INSERT INTO profiles VALUES (?, ?, ?)", (10 + number, text, number / 3))
    second, third = Home.at(folder / "second"), Home.at(folder / "third")
    bring_back(second, back_up(first))
    bring_back(third, back_up(second))
    assert rows(second) == rows(first)
    assert replaced(third) == replaced(second)
    for place in (second, third):
        assert files(place.launches, place.selftest) == files(first.launches, first.selftest)
        assert place.api_keys.exists()
        active = yaml.safe_load(place.active_profile.read_text())
        assert (active["launch"], active["revision"], active["profile"]["max-num-seqs"]) == (None, "r2", 2)


def test_what_stays_behind(home, fresh_database):
    """No session, set-up code, console token, lock, socket, link, cache or model leaves the machine in a backup."""
    fill(home, fresh_database)
    with closing(database(home)) as connection:
        connection.execute("INSERT INTO setup_code VALUES (1, 'code-hash', 1)")
    secret = home.root / "secret"
    secret.write_text("not for sticks")
    home.console_token.write_text("token-of-the-console")
    home.lock.write_text("lock")
    put(home.root / "caches" / "x", b"cache\n")
    put(home.models / "m" / "weights", b"model\n")
    launch = home.launch("20261120-000000-pppp")
    (launch / "link").symlink_to(secret)
    os.mkfifo(launch / "pipe")
    (launch / "folder").mkdir()
    (home.launches / "20261121-000000-0000").symlink_to(home.root / "caches")
    made = create.create(home, home.root)
    with tarfile.open(made.path) as archive:
        names = archive.getnames()
        content = b"".join(archive.extractfile(name).read() for name in names)
    assert sorted(names) == [
        "active/keys.json",
        "active/profile.yaml",
        "backup.json",
        "ingot.db",
        "launches/20261120-000000-pppp/engine.log",
        "manifest.json",
        "selftest/p.json",
        "trusted-keys/p.pub",
    ]
    assert names[0] == "backup.json"
    for never in (b"token-p", b"code-hash", b"token-of-the-console", b"not for sticks", b"cache\n", b"model\n"):
        assert never not in content
    assert {name.rsplit("/", 1)[1] for name in made.left_out} == {"link", "pipe", "folder"}
    assert made.path.stat().st_mode & 0o077 == 0


def test_without_launches(home, fresh_database):
    """Their folders stay out; the list of them, by which a roll-back is found, is in the database."""
    fill(home, fresh_database)
    path = back_up(home, with_launches=False)
    with path.open("rb") as raw:
        manifest = reading.read(raw, "b", 1, _nothing, lambda summary: None)
    assert not [file for file in manifest.files if file.path.startswith("launches/")]
    other = Home.at(home.root / "other")
    bring_back(other, path)
    assert rows(other)["launches"] == rows(home)["launches"]


def test_permissions_and_times(home, fresh_database):
    """What is restored is its owner's only, and as old as it was."""
    fill(home, fresh_database)
    log = home.launch("20261120-000000-pppp") / "engine.log"
    os.utime(log, (1e9, 1e9))
    other = Home.at(home.root / "other")
    bring_back(other, back_up(home))
    restored = other.launch("20261120-000000-pppp") / "engine.log"
    assert restored.stat().st_mtime == 1e9
    for path in other.root.rglob("*"):
        assert path.is_relative_to(other.models) or path.stat().st_mode & 0o077 == 0, path


def test_a_backup_of_what_is_being_written(home, fresh_database):
    """The engine appends to its log, replaces its record and makes launches, the console writes its database and takes
    others' keys away: every backup that is made meanwhile is whole, and its database and keys.json belong together."""
    fill(home, fresh_database)
    stop = threading.Event()
    launch = home.launch("20261120-000000-pppp")

    def engine() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            with (launch / "engine.log").open("ab") as log:
                log.write(b"x" * 5000 + b"\n")
            temporary = launch / ".launch.json.tmp"
            temporary.write_bytes(b"y" * (number % 7000))
            temporary.replace(launch / "launch.json")
            put(home.launch(f"20261121-000000-{number:04x}") / "events.jsonl", b"z\n")

    def console() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            with closing(sqlite3.connect(home.database, timeout=20, isolation_level=None)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("UPDATE api_keys SET sha256 = ?", (f"hash-{number}",))
                time.sleep(0.002)
                home.api_keys.write_text(json.dumps({"keys": [{"sha256": f"hash-{number}"}]}))
                connection.execute("COMMIT")
            time.sleep(0.001)

    with closing(database(home)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    writers = [threading.Thread(target=engine), threading.Thread(target=console)]
    for writer in writers:
        writer.start()
    try:
        paths = [back_up(home) for _ in range(3)]
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    for path in paths:
        restore.check(home, path)
        with tarfile.open(path) as archive:
            keys = json.loads(archive.extractfile("active/keys.json").read())
            (home.root / "out.db").write_bytes(archive.extractfile("ingot.db").read())
        with closing(sqlite3.connect(home.root / "out.db")) as connection:
            (sha256,) = connection.execute("SELECT sha256 FROM api_keys").fetchone()
        assert keys["keys"][0]["sha256"] == sha256


def test_backups_at_the_same_moment(home, fresh_database):
    """Each has a file of its own, none replaces another, and nothing half-written is left."""
    fill(home, fresh_database)
    made: list[Path] = []
    threads = [threading.Thread(target=lambda: made.append(back_up(home))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 6
    assert sorted(made) == sorted((home.root / "backups").iterdir())
    for path in made:
        restore.check(home, path)


def test_a_file_that_is_there_stays(home, fresh_database):
    """A backup is never written over anything."""
    fill(home, fresh_database)
    out = home.root / "mine.tar.gz"
    out.write_text("mine")
    with refusal("file-exists", str(out)):
        create.create(home, out)
    assert out.read_text() == "mine"


def test_what_a_killed_backup_left_is_swept(home, fresh_database):
    """Half a backup of a process that is gone goes with the next one, with its copy of the database; that of one that
    writes stays, and so do files of others."""
    fill(home, fresh_database)
    folder = home.root / "backups"
    put(folder / ".ingot-backup-20260101-000000.tar.gz.partial", b"half")
    put(folder / ".ingot-backup-20260101-000000.tar.gz.work" / "ingot.db", b"secret")
    put(folder / ".of-another-program.partial", b"theirs")
    put(folder / ".mine.tar.gz.partial", b"half")
    writes = create.claim(folder / ".ingot-backup-20260202-000000.tar.gz.partial")
    made = [back_up(home).name, create.create(home, folder / "mine.tar.gz").path.name]
    left = {".ingot-backup-20260202-000000.tar.gz.partial", ".of-another-program.partial"}
    assert {path.name for path in folder.iterdir()} == {*made, *left}
    os.close(writes)


def test_an_older_schema_is_migrated(home, fresh_database, tmp_path):
    """A backup of a database that is one step behind comes back at this version's schema, with its rows."""
    from console.db import schema

    old = tmp_path / "old.db"
    schema.upgrade(old, "0001")
    fill(home, old)
    path = back_up(home)
    assert reading.read_summary(path).schema == "0001"
    other = Home.at(tmp_path / "other")
    restored = bring_back(other, path)
    assert restored.migrated
    assert schema.current(other.database) == HEAD
    assert rows(other)["revisions"] == rows(home)["revisions"]


def test_a_newer_schema_can_be_backed_up_and_not_restored(home, fresh_database):
    """An upgrade is rolled back: the older Ingot keeps what the newer one left, and refuses it with its name."""
    fill(home, fresh_database)
    older = back_up(home)
    with closing(database(home)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.execute("DROP TABLE sessions")
    newer = back_up(home)
    with refusal("newer-schema", "9999"):
        bring_back(home, newer)
    kept = bring_back(home, older).kept
    assert reading.read_summary(home.root / "backups" / kept).schema == "9999"
    assert msgspec.to_builtins(restore.check(home, older))["schema"] == HEAD


def _nothing(name, written):
    from contextlib import nullcontext

    return nullcontext(lambda chunk: None)


def test_a_partial_file_that_another_backup_has_begun_is_not_swept(home, monkeypatch):
    """Of the same name as one that was swept by somebody else, between its opening and its locking here."""
    folder = home.root / "backups"
    folder.mkdir()
    partial = folder / ".ingot-backup-20261123-100000.tar.gz.partial"
    partial.write_bytes(b"of a process that has ended")

    def lock_late(_file, _how):
        partial.unlink()
        partial.write_bytes(b"new")
        create.workplace(partial).mkdir()

    monkeypatch.setattr("console.backups.create.fcntl.flock", lock_late)
    create.sweep(folder)
    assert partial.read_bytes() == b"new"
    assert create.workplace(partial).is_dir()
