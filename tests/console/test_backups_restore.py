"""A restore leaves the old state or the new one, whole, whatever happens in between."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from appliance.home import Home
from appliance.home_lock import OwnerLock
from console.backups import create, interrupted_restore, restore, restore_steps
from console.backups.reading import read_summary
from tests.console.backup_states import back_up, bring_back, database, files, fill, put, refusal, replaced, rows

STEPS = frozenset({"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.listdir", "sqlite3.connect", "shutil.rmtree"})


@pytest.fixture
def two(tmp_path, fresh_database):
    """(a present state, the backup of another one that has a launch of the same id)."""
    other = fill(Home.at(tmp_path / "other"), fresh_database, "other", made=2.0, key="other")
    put(other.launch("20261120-000000-pppp") / "engine.log", b"as the other had it\n")
    backup = shutil.move(back_up(other), tmp_path)
    return fill(Home.at(tmp_path / "home"), fresh_database), Path(backup)


def test_everything_is_replaced_and_launches_are_added(two):
    """Of a launch that both have, the one that is here stays as it is; what was replaced is in a backup."""
    home, backup = two
    restored = bring_back(home, backup)
    assert (restored.launches, restored.here_already) == (1, 1)
    assert restored.accounts == ["other-admin"]
    assert sorted(os.listdir(home.selftest)) == ["other.json"]
    assert sorted(os.listdir(home.root / "trusted-keys")) == ["other.pub"]
    assert b"hash-other" in home.api_keys.read_bytes()
    logs = files(home.launches)
    assert logs["launches/20261120-000000-pppp/engine.log"].startswith(b"p\n")
    assert logs["launches/20261120-000000-oooo/engine.log"].startswith(b"other\n")
    with closing(database(home)) as connection:
        paths = {path for (path,) in connection.execute("SELECT path FROM launches")}
    assert paths == {str(home.launch("20261120-000000-oooo"))}
    assert not list(home.root.glob(".restore-*"))
    assert not list(home.root.glob("restore-*"))


def test_a_restore_is_undone_by_restoring_what_it_kept(two):
    """Back and forth and back: each time the state is as it was."""
    home, backup = two
    before = replaced(home)
    first = bring_back(home, backup)
    after = replaced(home)
    second = bring_back(home, home.root / "backups" / first.kept)
    assert rows(home) == before[0]
    assert replaced(home)[2] == before[2]
    bring_back(home, home.root / "backups" / second.kept)
    assert replaced(home) == after


def test_what_somebody_saves_meanwhile_is_kept(two, monkeypatch):
    """A revision that is saved while the present state is backed up is in the backup that is kept of it."""
    home, backup = two
    create_, left = create.create, ["late"]

    def slow(*arguments, **options):
        made = create_(*arguments, **options)
        if left:
            with closing(database(home)) as connection:
                connection.execute("INSERT INTO profiles VALUES (99, ?, 1)", (left.pop(),))
        return made

    monkeypatch.setattr(create, "create", slow)
    kept = bring_back(home, backup).kept
    assert [path.name for path in (home.root / "backups").iterdir()] == [kept]
    bring_back(home, home.root / "backups" / kept)
    assert "late" in str(rows(home)["profiles"])


def test_the_same_twice(two):
    """A restore of what is there already changes nothing and adds no launch."""
    home, backup = two
    bring_back(home, backup)
    state, launches = replaced(home), files(home.launches)
    again = bring_back(home, backup)
    assert (again.launches, again.here_already) == (0, 2)
    assert (replaced(home), files(home.launches)) == (state, launches)


def test_killed_at_any_step(two, tmp_path):
    """SIGKILL before each thing that a restore does to the disk: the next start finds the old state or the new one,
    and no rest of the other."""
    home, backup = two
    seed = tmp_path / "seed"
    home.root.rename(seed)
    old, new = _state_after(seed, home, backup, None), _state_after(seed, home, backup, 10**9)
    steps = 10**9 - int((tmp_path / "left").read_text())
    assert old != new
    ends = []
    near_the_end = range(steps - 60, steps, 4)  # where the decision falls, and the state is changed
    for step in sorted({*range(0, steps, 50), *near_the_end}):
        state = _state_after(seed, home, backup, step)
        assert state in (old, new), step
        ends.append("old" if state == old else "new")
    assert ends == sorted(ends, reverse=True)
    assert ends.count("old") > 3
    assert ends.count("new") > 5


def _state_after(seed: Path, home: Home, backup: Path, kill_at: int | None):
    """The state that the next start finds after a restore that was killed before its step `kill_at`; None: that was
    not begun."""
    shutil.rmtree(home.root, ignore_errors=True)
    shutil.copytree(seed, home.root)
    if kill_at is not None:
        child = os.fork()
        if not child:
            left = kill_at

            def hook(event: str, arguments: tuple) -> None:
                nonlocal left
                if event in STEPS:
                    left -= 1
                    if left < 0:
                        os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(hook)
            try:
                bring_back(home, backup)
                (seed.parent / "left").write_text(str(left))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
    interrupted_restore.finish(home)
    assert not list(home.root.glob(".restore-*"))
    assert not list(home.root.glob("restore-*"))
    return replaced(home)


def test_what_was_written_after_the_database_was_replaced_is_kept(two, monkeypatch):
    """A restore that stops behind its database goes on with what is left: it does not bring the database again."""
    home, backup = two
    with monkeypatch.context() as patch:
        patch.setattr(restore_steps, "_replace_files", _fails)
        with refusal("pending"):
            bring_back(home, backup)
    with closing(database(home)) as connection:
        connection.execute("INSERT INTO profiles VALUES (99, 'made-meanwhile', 1)")
    assert interrupted_restore.finish(home)
    assert "made-meanwhile" in str(rows(home)["profiles"])
    assert b"hash-other" in home.api_keys.read_bytes()


def test_a_step_that_fails_before_the_database_is_taken_back(two, monkeypatch):
    """The present state stays, and no later start replaces it."""
    home, backup = two
    before = replaced(home)
    monkeypatch.setattr(restore_steps, "_replace_database", _fails)
    with refusal("rolled-back"):
        bring_back(home, backup)
    assert replaced(home) == before
    assert not interrupted_restore.finish(home)
    assert replaced(home) == before


def _fails(*arguments, **options):
    raise OSError(28, "No space left on device")


def test_the_database_is_replaced_under_its_readers_and_writers(two):
    """Connections that are open go on: a reader ends what it reads, then sees the new rows; nobody sees a mixture."""
    home, backup = two
    with closing(database(home)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    stop, seen, wrong = threading.Event(), set(), []

    def read() -> None:
        with closing(sqlite3.connect(home.database, timeout=20, isolation_level=None)) as connection:
            while not stop.is_set():
                connection.execute("BEGIN")
                name = connection.execute("SELECT name FROM profiles").fetchone()[0]
                time.sleep(0.002)
                key = connection.execute("SELECT id FROM api_keys").fetchone()[0]
                connection.execute("COMMIT")
                seen.add((name, key))

    def write() -> None:
        with closing(sqlite3.connect(home.database, timeout=20, isolation_level=None)) as connection:
            while not stop.is_set():
                try:
                    connection.execute("UPDATE users SET created = created")
                except sqlite3.Error as error:
                    wrong.append(error)
                time.sleep(0.001)

    threads = [threading.Thread(target=read), threading.Thread(target=read), threading.Thread(target=write)]
    for thread in threads:
        thread.start()
    bring_back(home, backup)
    time.sleep(0.1)
    stop.set()
    for thread in threads:
        thread.join()
    assert seen == {("p", "k"), ("other", "other")}
    assert wrong == []


def test_who_is_signed_in(two, fresh_database, tmp_path):
    """A browser stays signed in where the backup has the same account, by name and making; else it is signed out."""
    home, backup = two
    own = back_up(home)
    with closing(database(home)) as connection:
        connection.execute("INSERT INTO users VALUES (2, 'new', 'hash', 5)")
        connection.execute("INSERT INTO sessions VALUES (2, 'token-new', 2, 1, 1, 4e9, '', '')")
    bring_back(home, own)
    assert _sessions(home) == [("token-p", 1)]
    bring_back(home, backup)
    assert _sessions(home) == []


def _sessions(home: Home) -> list[tuple[str, int]]:
    with closing(database(home)) as connection:
        return connection.execute("SELECT token_sha256, user_id FROM sessions").fetchall()


def test_a_copy_of_the_database_alone(two):
    """What a migration keeps can be restored as well: the database and what follows from it, nothing else."""
    home, _ = two
    copy = home.root / "backups" / "before-0002-20261120-000000.db"
    copy.parent.mkdir()
    shutil.copy(home.database, copy)
    with closing(database(home)) as connection:
        connection.execute("DELETE FROM api_keys")
    put(home.root / "trusted-keys" / "later.pub", b"another key\n")
    restored = bring_back(home, copy)
    assert restored.active == "p r2"
    assert [row[0] for row in rows(home)["api_keys"]] == ["k"]
    assert b"hash-k" in home.api_keys.read_bytes()
    assert sorted(os.listdir(home.root / "trusted-keys")) == ["later.pub", "p.pub"]


def test_a_present_database_that_cannot_be_read(two):
    """It is put aside and kept; the backup takes its place."""
    home, backup = two
    home.database.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    restored = bring_back(home, backup)
    assert restored.kept is None
    assert rows(home)["profiles"][0][1] == "other"
    (aside,) = home.root.glob("ingot.db.unreadable-*")
    assert aside.stat().st_size == 5016


def test_a_disk_without_room(two, monkeypatch):
    """Nothing is begun, and the message says how much is wanted."""
    home, backup = two
    before = replaced(home)
    monkeypatch.setattr("console.backups.disk_space.free", lambda folder: 1 << 20)
    with refusal("disk-full", "1.0 MiB"):
        bring_back(home, backup)
    with refusal("disk-full"):
        back_up(home)
    assert replaced(home) == before
    assert list((home.root / "backups").iterdir()) == []
    assert not list(home.root.glob(".restore-*"))


def test_a_disk_that_fills_up(two):
    """A write that fails in the middle leaves the state and no rest."""
    home, _ = two
    put(home.launch("20261121-000000-aaaa") / "engine.log", os.urandom(400_000))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    try:
        with refusal("not-written"):
            back_up(home)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((home.root / "backups").iterdir()) == []


def test_a_command_leaves_a_pending_restore_to_the_console_that_runs(two, monkeypatch):
    """Only who holds the console's lock finishes it."""
    home, backup = two
    with monkeypatch.context() as patch:
        patch.setattr(restore_steps, "carry_out", lambda home: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            bring_back(home, backup)
    lock = OwnerLock(home.console_lock, "ingot up")
    interrupted_restore.finish_if_alone(home)
    assert rows(home)["profiles"][0][1] == "p"
    lock.release()
    interrupted_restore.finish_if_alone(home)
    assert rows(home)["profiles"][0][1] == "other"


def test_checking_touches_nothing(two):
    """Not the state, and nothing is left of the look."""
    home, backup = two
    before = files(home.root)
    checked = restore.check(home, backup)
    assert (checked.ingot, checked.contents.accounts) == (read_summary(backup).ingot, ["other-admin"])
    assert {name: content for name, content in files(home.root).items() if "ingot.db-" not in name} == before
