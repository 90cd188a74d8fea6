"""`ingot launches list` and `show`, on a terminal and in a pipe: the cause of a failure is always there, and whole."""

from __future__ import annotations

import json
import os
import pty
import shutil
import sqlite3
import subprocess
import sys

import msgspec
import pytest

from appliance.protocol import ProcessEnd
from tests.console.launch_folders import DIAGNOSIS, failed_launch, ready_launch

OLD, NEW = "20261120-100000-aaaa", "20261120-110000-bbbb"
COMMAND = [sys.executable, "-m", "appliance.cli", "launches", "list"]


@pytest.fixture
def environment(home):
    ready_launch(home, OLD)
    failed_launch(home, NEW)
    return {**os.environ, "INGOT_HOME": str(home.root), "TERM": "dumb"}


def on_terminal(environment, columns):
    ours, theirs = pty.openpty()
    subprocess.run(COMMAND, env=environment | {"COLUMNS": str(columns)}, stdout=theirs, stderr=theirs, timeout=30)
    os.close(theirs)
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    return shown.splitlines()


def test_a_pipe_gets_one_whole_line_a_launch(environment):
    done = subprocess.run(COMMAND, env=environment | {"COLUMNS": "80"}, capture_output=True, text=True, timeout=30)
    header, new, old = done.stdout.splitlines()
    assert header.split() == ["launch", "number", "profile", "outcome", "started", "cause"]
    assert new.startswith(NEW)
    assert new.endswith(DIAGNOSIS.summary)
    assert old.startswith(OLD)


def test_a_narrow_terminal_gets_the_cause_below_its_launch(environment):
    _, new, *why, old = on_terminal(environment, 80)
    assert new.startswith(NEW)
    assert " ".join(line.strip() for line in why) == DIAGNOSIS.summary
    assert all(line.startswith("  ") and len(line) <= 80 for line in why)
    assert old.startswith(OLD)


def test_a_wide_terminal_gets_the_cause_beside_its_launch(environment):
    _, new, old = on_terminal(environment, 240)
    assert new.startswith(NEW)
    assert new.endswith(DIAGNOSIS.summary)
    assert old.startswith(OLD)


def test_a_launch_is_listed_with_the_number_that_other_commands_take(environment, home, fresh_database):
    """Once the console has seen it; without one, its cell is empty."""
    shutil.copy(fresh_database, home.database)
    with sqlite3.connect(home.database) as connection:
        row = (41, OLD, "qwen3-8b", "r7", "native", "ready", "", 0.0, "")
        names = "number, launch_id, profile, revision, engine, state, reason, started, path"
        connection.execute(f"INSERT INTO launches ({names}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    run = {"env": environment, "capture_output": True, "text": True, "timeout": 30}
    _, new, old = subprocess.run(COMMAND, **run).stdout.splitlines()
    assert (new.split()[1], old.split()[1]) == ("qwen3-8b", "41")
    listed = subprocess.run([*COMMAND, "--json"], **run).stdout.splitlines()
    assert [(row["id"], row["number"]) for row in map(msgspec.json.decode, listed)] == [(NEW, None), (OLD, 41)]


def test_one_launch_is_shown_with_how_its_processes_ended(environment, home):
    launch = failed_launch(home, "20261120-120000-cccc")
    for pid, name, status in ((12, "Worker_TP1", -9), (11, "APIServer", 1)):
        launch.process_ended(ProcessEnd(pid=pid, name=name, time=launch.time + status, status=status))
    launch.save()
    show = [*COMMAND[:-1], "show", "20261120-120000-cccc"]
    text = subprocess.run(show, env=environment, capture_output=True, text=True, timeout=30, check=True).stdout
    assert DIAGNOSIS.summary in text
    assert text.index("Worker_TP1") < text.index("APIServer")
    assert "SIGKILL" in text
    told = subprocess.run([*show, "--json"], env=environment, capture_output=True, timeout=30, check=True).stdout
    assert [(end["name"], end["status"]) for end in json.loads(told)["process_ends"]] == [
        ("Worker_TP1", -9),
        ("APIServer", 1),
    ]
