"""A backup comes from a stick: whatever is in it, nothing is written outside, and nothing half-right is restored."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import random
import resource
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from appliance.home import Home
from console.backups import archive_format, restore
from console.backups.errors import BackupError
from console.backups.reading import read_summary
from console.db import schema
from tests.console.backup_states import back_up, bring_back, files, fill, refusal


@pytest.fixture
def backup(tmp_path, fresh_database) -> Path:
    return back_up(fill(Home.at(tmp_path / "from"), fresh_database))


@pytest.fixture
def here(tmp_path, fresh_database):
    """A state that must stay as it is."""
    return fill(Home.at(tmp_path / "here"), fresh_database, "here")


def members(path: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(path) as archive:
        return [(member, archive.extractfile(member).read()) for member in archive.getmembers()]


def packed(path: Path, parts, *, manifest: bool = True) -> Path:
    """An archive of these members; with `manifest` one that fits them, as whoever makes such a file would see to."""
    listed = [
        {"path": member.name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for member, content in parts
        if member.isreg() and member.name not in (archive_format.SUMMARY, archive_format.MANIFEST)
    ]
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for member, content in parts:
            if manifest and member.name == archive_format.MANIFEST:
                content = json.dumps({**json.loads(content), "files": listed}).encode()
            member.size = len(content) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(content) if member.isreg() else None)
    return path


def extra(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member, b"hostile\n" if kind == tarfile.REGTYPE else b""


OUTSIDE = [
    extra("../outside"),
    extra("/tmp/outside"),
    extra("launches/../../outside"),
    extra("launches/x/../../outside"),
    extra("active/console-token"),
    extra("serve.lock"),
    extra("launches/20261120-000000-0000/.hidden"),
    extra("launches/20261120-000000-0000/a/b"),
    extra("trusted-keys/link.pub", tarfile.SYMTYPE, "/etc/passwd"),
    extra("launches/20261120-000000-0000/engine.log", tarfile.LNKTYPE, "ingot.db"),
    extra("launches/20261120-000000-0000", tarfile.SYMTYPE, "/tmp"),
    extra("launches/20261120-000000-0000/device", tarfile.CHRTYPE),
    extra("launches/20261120-000000-0000/pipe", tarfile.FIFOTYPE),
    extra("launches/20261120-000000-0000", tarfile.DIRTYPE),
    extra("selftest/p.json"),  # a second time
]


@pytest.mark.parametrize("part", OUTSIDE, ids=lambda part: part[0].name)
def test_only_plain_files_of_known_names(backup, here, tmp_path, part):
    """Another path, a link, a device, a folder, a name twice: the file is refused, and nothing of it is left."""
    parts = members(backup)
    bad = packed(tmp_path / "bad.tar.gz", [*parts[:-1], part, parts[-1]])
    before = files(tmp_path)
    with refusal("tampered"):
        bring_back(here, bad)
    after = {name: content for name, content in files(tmp_path).items() if "ingot.db-" not in name}
    assert after == before


def test_a_changed_file_is_named(backup, here, tmp_path):
    """One byte of one log differs."""
    parts = [
        (member, content.replace(b"p", b"q", 1) if member.name.endswith("log") else content)
        for member, content in members(backup)
    ]
    bad = packed(tmp_path / "bad.tar.gz", parts, manifest=False)
    with refusal("damaged", "engine.log"):
        restore.check(here, bad)


@pytest.mark.parametrize("missing", ["ingot.db", "manifest.json", "backup.json", "selftest/p.json"])
def test_a_part_that_is_missing(backup, here, tmp_path, missing):
    """Whichever it is, the backup is refused."""
    parts = [part for part in members(backup) if part[0].name != missing]
    bad = packed(tmp_path / "bad.tar.gz", parts, manifest=missing != "selftest/p.json")
    with pytest.raises(BackupError):
        restore.check(here, bad)


def test_half_a_file(backup, here, tmp_path):
    """Copied only in part, at whatever byte it broke off: said as such, never restored."""
    raw = backup.read_bytes()
    for length in range(0, len(raw) - 1, max(1, len(raw) // 60)):
        cut = tmp_path / "cut.tar.gz"
        cut.write_bytes(raw[:length])
        with pytest.raises(BackupError):
            restore.check(here, cut)


def test_bytes_that_are_wrong(backup, here, tmp_path):
    """Damage anywhere, packed or unpacked, ends in a refusal; never in another error, never in a restore."""
    chance = random.Random(5)
    raw = backup.read_bytes()
    plain = gzip.decompress(raw)
    for _ in range(150):
        damaged = bytearray(plain)
        for _ in range(chance.randint(1, 4)):
            # Headers are where the parser can be led astray: half of the damage goes there.
            place = chance.choice(
                [chance.randrange(len(plain)), chance.randrange(0, len(plain), 512) + chance.randrange(512)]
            )
            damaged[min(place, len(plain) - 1)] = chance.randrange(256)
        bad = tmp_path / "bad.tar.gz"
        bad.write_bytes(gzip.compress(bytes(damaged), 1))
        _refused_or_same(here, bad)
    for _ in range(50):
        damaged = bytearray(raw)
        damaged[chance.randrange(12, len(raw))] ^= 1 << chance.randrange(8)
        bad.write_bytes(bytes(damaged))
        _refused_or_same(here, bad)


def _refused_or_same(here: Home, path: Path) -> None:
    """Owners, modes and times in a header, and what fills a block up, are not looked at; all content is."""
    try:
        checked = restore.check(here, path)
    except BackupError:
        return
    assert checked.contents.accounts == ["p-admin"]


def test_a_bomb_is_not_unpacked(backup, here, tmp_path):
    """What says that it is small and unpacks to gigabytes ends at what it said."""
    parts = members(backup)
    large = extra("launches/20261120-000000-0000/engine.log")[0]
    bad = packed(tmp_path / "bad.tar.gz", [*parts[:-1], (large, bytes(40 << 20)), parts[-1]])
    assert bad.stat().st_size < 1 << 20
    with refusal("tampered"):
        bring_back(here, bad)


def test_a_header_that_claims_gigabytes(backup, here, tmp_path):
    """tarfile reads some headers whole: not more than a megabyte of them."""
    for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME):
        header = tarfile.TarInfo("x")
        header.type, header.size = kind, 3 << 30
        bad = tmp_path / "bad.tar.gz"
        bad.write_bytes(gzip.compress(header.tobuf() + bytes(4 << 20)))
        with refusal("damaged"):
            read_summary(bad)


def test_ten_thousand_headers_of_one_file(tmp_path):
    """Headers that are followed by headers do not exhaust the stack."""
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1
    bad = tmp_path / "bad.tar.gz"
    bad.write_bytes(gzip.compress((header.tobuf(tarfile.GNU_FORMAT) + bytes(512)) * 10_000))
    with pytest.raises(BackupError):
        read_summary(bad)


def summarized(backup: Path, path: Path, **changes) -> Path:
    parts = []
    for member, content in members(backup):
        if member.name in (archive_format.SUMMARY, archive_format.MANIFEST):
            content = json.dumps({**json.loads(content), **changes}).encode()
        parts.append((member, content))
    return packed(path, parts)


def test_a_newer_format_is_refused_with_its_version(backup, here, tmp_path):
    """Before anything else of it is read: it may look otherwise."""
    bad = summarized(backup, tmp_path / "bad.tar.gz", format=2, ingot="7.1", bytes=0)
    with refusal("newer-format", "7.1"):
        bring_back(here, bad)


@pytest.mark.parametrize(
    "changes", [{"kind": "other"}, {"bytes": -1}, {"made": 1e300}, {"made": "soon"}, {"schema": 2}]
)
def test_a_summary_that_cannot_be(backup, tmp_path, changes):
    """Neither a list nor a restore takes it."""
    with pytest.raises(BackupError):
        read_summary(summarized(backup, tmp_path / "bad.tar.gz", **changes))


def test_two_that_are_not_one(backup, here, tmp_path):
    """Summary and manifest are of the same backup."""
    parts = members(backup)
    parts[0] = (parts[0][0], json.dumps({**json.loads(parts[0][1]), "made": 5.0}).encode())
    with refusal("damaged"):
        bring_back(here, packed(tmp_path / "bad.tar.gz", parts))


# ---- the database ---------------------------------------------------------------------------------------------------


def with_database(backup: Path, path: Path, statements: str) -> Path:
    """The same backup with a database to which something was done."""
    copy = path.with_suffix(".work")
    parts = members(backup)
    copy.write_bytes(next(content for member, content in parts if member.name == "ingot.db"))
    with closing(sqlite3.connect(copy)) as connection:
        connection.executescript(f"PRAGMA ignore_check_constraints = ON; {statements}")
    return packed(
        path, [(member, copy.read_bytes() if member.name == "ingot.db" else content) for member, content in parts]
    )


@pytest.mark.parametrize(
    ("statements", "code", "named"),
    [
        ("DROP TABLE api_keys", "damaged", "api_keys"),
        ("DROP TABLE api_keys; CREATE VIEW api_keys AS SELECT * FROM users", "damaged", "api_keys"),
        ("DROP TABLE api_keys; CREATE VIRTUAL TABLE api_keys USING fts5(id, name)", "damaged", "api_keys"),
        ("ALTER TABLE users DROP COLUMN created", "damaged", "users"),
        ("INSERT INTO active_revision VALUES (2, 1, '', 0)", "damaged", ""),
        ("UPDATE active_revision SET revision_id = 77", "damaged", "revisions"),
        ("UPDATE launches SET launch_id = '../../outside'", "damaged", "../../outside"),
        ("INSERT INTO benchmarks VALUES (1, '', '', '', '', 1, '', 'no json')", "damaged", "JSON"),
        ("UPDATE users SET created = 'yesterday'", "damaged", "DOUBLE"),
        ("UPDATE users SET created = 1e300", "damaged", "DOUBLE"),
        ("UPDATE users SET name = x'00ff'", "damaged", "VARCHAR"),
        ("DELETE FROM alembic_version", "not-a-database", ""),
        ("DROP TABLE alembic_version", "not-a-database", ""),
        ("UPDATE alembic_version SET version_num = '9999'", "newer-schema", "9999"),
    ],
)
def test_a_database_that_was_tampered_with(backup, here, tmp_path, statements, code, named):
    """Its rows pass our own schema or the backup is refused, with what is wrong."""
    before = files(here.root)
    with refusal(code, named):
        bring_back(here, with_database(backup, tmp_path / "bad.tar.gz", statements))
    assert {name: content for name, content in files(here.root).items() if "ingot.db-" not in name} == before


LARGE = "hex(zeroblob(300000000))"
ONE_ROW = "INSERT INTO alembic_version VALUES (1)"


@pytest.mark.parametrize(
    "statements",
    [
        f"DROP TABLE alembic_version; CREATE TABLE alembic_version (x, version_num AS ({LARGE})); {ONE_ROW}",
        f"CREATE TABLE more (x CHECK (length({LARGE}) > 0)); INSERT INTO more VALUES (1)",
        f"ALTER TABLE users ADD COLUMN more AS ({LARGE}) VIRTUAL; CREATE INDEX spy ON users (length(name || more))",
    ],
)
def test_a_database_that_would_fill_the_memory(backup, here, tmp_path, statements):
    """What a stranger's file has SQLite compute as it is read is bounded: the console may use a gigabyte in all."""
    path = with_database(backup, tmp_path / "bad.tar.gz", "SELECT 1")
    made = "import sqlite3, sys; sqlite3.connect(sys.argv[1], isolation_level=None).executescript(sys.argv[2])"
    subprocess.run(
        [sys.executable, "-c", made, tmp_path / "bad.tar.work", statements], check=True
    )  # its memory is its own
    parts = members(path)
    content = (tmp_path / "bad.tar.work").read_bytes()
    packed(path, [(member, content if member.name == "ingot.db" else old) for member, old in parts])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.suppress(BackupError):  # what is never read may stay as it is
        restore.check(here, path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # KiB


def test_what_else_is_in_a_database_stays_behind(backup, here, tmp_path):
    """Triggers and views of a stranger would run when the console writes: only rows are taken."""
    path = with_database(
        backup,
        tmp_path / "odd.tar.gz",
        "CREATE TRIGGER spy AFTER INSERT ON api_keys BEGIN DELETE FROM users; END;"
        "CREATE VIEW spies AS SELECT * FROM users; CREATE TABLE more (x); INSERT INTO more VALUES (1);",
    )
    bring_back(here, path)
    with closing(sqlite3.connect(here.database)) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        assert connection.execute("SELECT name FROM users").fetchall() == [("p-admin",)]
    assert not names & {"spy", "spies", "more"}
    assert "revisions_are_immutable" in names
    assert schema.current(here.database) == msgspec.to_builtins(read_summary(path))["schema"]
