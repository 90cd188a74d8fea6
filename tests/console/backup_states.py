"""States to back up, made of plain rows and files, and what two of them have in common."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from appliance.home import Home
from console.backups import create, restore
from console.backups.errors import BackupError
from console.backups.restore import Restored

NOT_COMPARED = ("sessions", "setup_code", "alembic_version")


def database(home: Home) -> sqlite3.Connection:
    return sqlite3.connect(home.database, isolation_level=None)


def fill(home: Home, fresh: Path, name: str = "p", *, made: float = 1.0, key: str = "k") -> Home:
    """A state with an account, one profile of two revisions, the second active, one API key and one launch."""
    home.create()
    shutil.copy(fresh, home.database)
    with closing(database(home)) as connection:
        connection.execute("INSERT INTO users VALUES (1, ?, 'hash', ?)", (f"{name}-admin", made))
        connection.execute("INSERT INTO sessions VALUES (1, ?, 1, 1, 1, 4e9, '', '')", (f"token-{name}",))
        connection.execute("INSERT INTO profiles VALUES (1, ?, 1)", (name,))
        for number in (1, 2):
            document = json.dumps({"schema": 1, "name": name, "model": {"path": "bundled"}, "max-num-seqs": number})
            connection.execute(
                "INSERT INTO revisions VALUES (?, 1, ?, ?, ?, 'a note: ü', 'me', 2.5)",
                (number, number, document, f"{name}{number}"),
            )
        connection.execute("INSERT INTO active_revision VALUES (1, 2, 'l', 3)")
        connection.execute("INSERT INTO api_keys VALUES (?, ?, 'ingot-abc', ?, 1, 'me')", (key, key, f"hash-{key}"))
        connection.execute(
            "INSERT INTO launches (launch_id, profile, state, reason, engine, revision, started, path) "
            "VALUES (?, ?, 'ready', '', 'native', 'r2', 1, '/elsewhere')",
            (f"20261120-000000-{name[0] * 4}", name),
        )
    home.api_keys.write_text(json.dumps({"keys": [{"id": key, "name": key, "sha256": f"hash-{key}"}]}))
    home.active_profile.write_text(f"launch: x\nrevision: r2\nprofile: {{name: {name}, model: {{path: bundled}}}}\n")
    put(home.selftest / f"{name}.json", f"answers of {name}".encode())
    put(home.root / "trusted-keys" / f"{name}.pub", b"a key\n")
    put(home.launch(f"20261120-000000-{name[0] * 4}") / "engine.log", f"{name}\n".encode() * 1000)
    return home


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def rows(home: Home) -> dict[str, list[tuple[Any, ...]]]:
    """Every row that a backup keeps; where launches lie and which one is awaited is the present state's own."""
    with closing(database(home)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        kept = {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in sorted(tables)}
    kept = {table: found for table, found in kept.items() if table not in NOT_COMPARED}
    kept["launches"] = [row[:-1] for row in kept["launches"]]
    kept["active_revision"] = [(row[0], row[1], row[3]) for row in kept["active_revision"]]
    return kept


def files(*folders: Path) -> dict[str, bytes]:
    return {
        f"{folder.name}/{path.relative_to(folder)}": path.read_bytes()
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def replaced(home: Home) -> tuple[Any, ...]:
    """All that a restore puts in another's place."""
    active = {name: (home.active / name).read_bytes() for name in ("profile.yaml", "keys.json")}
    return rows(home), active, files(home.selftest, home.root / "trusted-keys")


def back_up(home: Home, **options: Any) -> Path:
    folder = home.root / "backups"
    folder.mkdir(exist_ok=True)
    return create.create(home, folder, **options).path


def bring_back(home: Home, path: Path) -> Restored:
    home.create()
    with path.open("rb") as raw:
        return restore.restore(home, raw, path.name, path.stat().st_size)


@contextmanager
def refusal(code: str, named: str = "") -> Iterator[None]:
    """The body is refused with this code, and the message has what is `named`."""
    with pytest.raises(BackupError) as caught:
        yield
    assert caught.value.code == code, caught.value
    assert named in caught.value.message
