"""`ingot profile`: what it prints, its exit status, and what it leaves on the disk."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import socket
import sqlite3
import subprocess
import sys
import threading
import time

import pytest
import uvicorn
import yaml
from click.testing import CliRunner

from appliance.cli import main
from appliance.profile.active import read_active
from console import address
from console.access.token import ensure_console_token
from console.app import create_app
from console.settings import ConsoleConfig
from tests.console.conftest import RememberingControl
from tests.tiny import write_checkpoint

COMMAND = [sys.executable, "-m", "appliance.cli", "profile"]


class Cli:
    """In this process: one of its own takes a second to start."""

    def __init__(self, home):
        self.environ = {**os.environ, "INGOT_HOME": str(home.root), "NO_COLOR": "1"}

    def __call__(self, *arguments, status=0, stdin=""):
        done = CliRunner(env=self.environ).invoke(main, ["profile", *map(str, arguments)], input=stdin)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
        assert done.exit_code == status, (done.exit_code, done.stdout, done.stderr)
        return done.stdout if status in (0, 3) or done.stdout else done.stderr

    def in_a_process(self, *arguments, stdin=""):
        return subprocess.run(
            [*COMMAND, *arguments], env=self.environ, input=stdin, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip

    def json(self, *arguments, **more):
        return json.loads(self(*arguments, "--json", **more))


@pytest.fixture
def cli(home):
    return Cli(home)


@pytest.fixture
def file(tmp_path):
    def write(document, name="profile.yaml"):
        path = tmp_path / name
        path.write_text(yaml.safe_dump(document))
        return path

    return write


@pytest.fixture
def running(home):
    """A console on a real port, whose engine control remembers what it was asked."""
    home.create()
    ensure_console_token(home)
    control = RememberingControl()
    listening = socket.create_server(("127.0.0.1", 0))
    config = ConsoleConfig(home=home, engine_port=9, port=listening.getsockname()[1])
    server = uvicorn.Server(uvicorn.Config(create_app(config, control, follow=False), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    with address.recorded(home, config.host, config.port):
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield control
        server.should_exit = True
        thread.join(10)


def test_a_new_state_folder_gets_the_bundled_profile(cli):
    cli("import", "-", stdin="{name: chat, model: {path: Tiny}}")
    [bundled] = cli.json("list")
    assert bundled["active"] == 1
    assert bundled["name"] in cli("list")


def test_import_is_a_dry_run_until_it_is_told_otherwise(cli, file):
    path = file({"name": "chat", "model": {"path": "Tiny"}, "max-num-seqs": 4})
    said = cli("import", path)
    assert "chat r1  new profile" in said
    assert "max-num-seqs: 4" in said
    assert "dry run" in said
    assert "chat" not in [profile["name"] for profile in cli.json("list")]
    assert "Imported chat r1." in cli("import", "--yes", path)
    assert "chat r1  no change" in cli("import", "--yes", path)
    path = file({"name": "chat", "model": {"path": "Tiny"}, "max-num-seqs": 8})
    said = cli("import", "--yes", path)
    assert "max-num-seqs: 4 -> 8" in said
    assert "Imported chat r2." in said


def test_import_reads_json_and_the_standard_input(cli):
    document = {"name": "chat", "model": {"path": "Tiny"}}
    result = cli.json("import", "--yes", "-", stdin=json.dumps(document))
    assert [revision["profile"] for revision in result["saved"]] == ["chat"]


def test_a_process_ends_with_the_exit_status(cli):
    """And its output is UTF-8 JSON, its messages on standard error."""
    done = cli.in_a_process("import", "--yes", "-", "--json", stdin="{name: chat, model: {path: Gone-7B}}")
    assert (done.returncode, done.stderr) == (0, "")
    assert [revision["profile"] for revision in json.loads(done.stdout)["saved"]] == ["chat"]
    refused = cli.in_a_process("activate", "chat")
    assert refused.returncode == 3
    unknown = cli.in_a_process("show", "nope")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "nope" in unknown.stderr


def test_import_asks_on_a_terminal(cli, file):
    path = file({"name": "chat", "model": {"path": "Tiny"}})
    for answer, imported in (("n\n", False), ("y\n", True)):
        ours, theirs = pty.openpty()
        child = subprocess.Popen(
            [*COMMAND, "import", str(path)],
            env=cli.environ, stdin=theirs, stdout=theirs, stderr=theirs,
        )  # fmt: skip
        os.close(theirs)
        seen = b""
        while b"Import?" not in seen and select.select([ours], [], [], 30)[0]:
            seen += os.read(ours, 4096)
        assert b"chat r1" in seen
        os.write(ours, answer.encode())
        while select.select([ours], [], [], 30)[0]:
            try:
                if not os.read(ours, 4096):
                    break
            except OSError:  # the other end of a pty that is closed
                break
        os.close(ours)
        assert child.wait(30) == 0
        assert ("chat" in [profile["name"] for profile in cli.json("list")]) is imported


def test_a_file_that_is_no_profile_stops_the_import_and_every_problem_is_reported(cli, file):
    good = file({"name": "chat", "model": {"path": "Tiny"}}, "good.yaml")
    bad = file({"name": "Talk", "model": {"path": "Tiny"}, "max-num-sequences": 3}, "bad.yaml")
    said = cli("import", "--yes", good, bad, status=1)
    for part in (
        "bad.yaml: cannot be imported",
        "max-num-sequences",
        "`max-num-seqs`",
        "lower-case",
        "Nothing was imported",
    ):
        assert part in said
    problems = cli.json("import", "--yes", good, bad, status=1)["planned"][1]["problems"]
    assert {problem["field"] for problem in problems} == {"name", "max-num-sequences"}
    assert "chat" not in [profile["name"] for profile in cli.json("list")]


def test_a_name_twice_in_one_import_is_refused(cli, file):
    one = file({"name": "chat", "model": {"path": "Tiny"}}, "one.yaml")
    two = file({"name": "chat", "model": {"path": "Other"}}, "two.yaml")
    assert "second profile named chat" in cli("import", "--yes", one, two, status=1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"name: [", "line 2 column 1"), (b"\xff\xfe", "not UTF-8"), (b"", "empty"), (b"- a\n- b\n", "`name: "),
        (b"{\"name\": \"a\"", "line "), (b"name: a\nname: b\n", "line 1 and again in line 2"),
        (b"a: " + b"x" * 300_000, "bytes"), (b"name: &x a\n", "'x'"), (b"!!python/object:os.system {}", "tag"),
    ],
)  # fmt: skip
def test_text_that_is_no_document_is_refused_with_what_is_wrong(cli, tmp_path, text, said):
    path = tmp_path / "bad.yaml"
    path.write_bytes(text)
    assert said in cli("import", "--yes", path, status=1)


def test_what_was_exported_imports_as_the_same(cli, file, tmp_path):
    cli("import", "--yes", file({"name": "chat", "model": {"path": "Tiny"}, "kv-cache-memory-bytes": "2 GiB"}))
    exported = cli("export", "chat")
    assert "kv-cache-memory-bytes: 2 GiB" in exported
    assert json.loads(cli("export", "chat", "--json"))["name"] == "chat"
    cli("export", "chat", "-o", tmp_path / "out.yaml")
    assert (tmp_path / "out.yaml").read_text() == exported
    assert "no change" in cli("import", "--yes", tmp_path / "out.yaml")
    assert "out" in cli("export", "chat", "-o", tmp_path / "no" / "out.yaml", status=1)


def test_show_names_the_revisions_and_an_unknown_name_is_refused(cli, file):
    cli("import", "--yes", file({"name": "chat", "model": {"path": "Tiny"}}))
    cli("import", "--yes", file({"name": "chat", "model": {"path": "Tiny"}, "max-num-seqs": 8}))
    said = cli("show", "chat")
    assert "chat r2" in said
    assert "max-num-seqs: 8" in said
    assert "max-num-seqs" not in cli("show", "chat", "-r", "1")
    assert [r["number"] for r in cli.json("show", "chat")["profile"]["revisions"]] == [2, 1]
    assert "There is no profile named 'nope'" in cli("show", "nope", status=1)
    assert "no revision 9" in cli("show", "chat", "-r", "9", status=1)
    refused = cli.json("show", "nope", status=1)
    assert refused["field"] == "name"
    assert "ingot profile list" in refused["remedy"]
    assert "ingot profile show chat" in cli("show", "chat", "-r", "9", status=1)
    cli("show", "chat", "-r", "x", status=2)


def test_without_a_console_the_revision_waits_for_the_engines_next_start(cli, file, home):
    write_checkpoint(home.models / "Tiny")
    cli("import", "--yes", file({"name": "chat", "model": {"path": "Tiny"}}))
    assert "chat r1" in cli("activate", "chat")
    active = read_active(home)
    assert (active.document["name"], active.revision) == ("chat", "r1")
    assert cli.json("list")[0]["name"] == "chat"


def test_what_preflight_refuses_has_an_exit_status_of_its_own(cli, file, home):
    cli("import", "--yes", file({"name": "chat", "model": {"path": "Gone-7B"}}))
    refused = cli.json("activate", "chat", status=3)
    assert [finding["id"] for finding in refused["findings"]] == ["model-missing"]
    assert read_active(home) is None
    assert "chat r1 is active" in cli("activate", "chat", "--anyway")
    assert read_active(home).document["name"] == "chat"


def test_a_running_console_activates_and_restarts_the_engine(cli, file, home, running):
    write_checkpoint(home.models / "Tiny")
    cli("import", "--yes", file({"name": "chat", "model": {"path": "Tiny"}}))
    result = cli.json("activate", "chat")
    assert (result["restarted"], running.calls) == (True, ["restart"])
    assert read_active(home).launch == result["launch"]
    cli("import", "--yes", file({"name": "broken", "model": {"path": "Gone-7B"}}))
    assert cli.json("activate", "broken", status=3)["findings"][0]["id"] == "model-missing"
    refused = cli.json("rollback", status=1)
    assert "`ingot profile activate`" in refused["remedy"]  # the page's remedy is for those who see one
    assert running.calls == ["restart"]


def test_a_console_that_was_killed_is_taken_for_none(cli, file, home):
    """Its address is still recorded, but nobody answers there."""
    write_checkpoint(home.models / "Tiny")
    cli("import", "--yes", file({"name": "chat", "model": {"path": "Tiny"}}))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        (home.root / "console.json").write_text(json.dumps({"url": f"http://127.0.0.1:{unused.getsockname()[1]}"}))
    assert cli.json("activate", "chat")["restarted"] is False


def test_rolling_back_goes_to_the_last_launch_that_was_ready(cli, file, home):
    """Launch folders that no console has seen yet count too."""
    write_checkpoint(home.models / "Tiny")
    cli("import", "--yes", file({"name": "chat", "model": {"path": "Tiny"}}))
    made = cli.json("show", "chat")["revision"]["created"]
    folder = home.launch("20261120-095145-3f2a")
    folder.mkdir(parents=True)
    record = {"id": folder.name, "profile": "chat", "revision": "r1", "started": made + 1, "state": "stopped",
              "ready_after_s": 1.5}  # fmt: skip
    (folder / "launch.json").write_text(json.dumps(record))
    assert cli.json("rollback")["profile"] == "chat"
    assert read_active(home).document["name"] == "chat"


def test_reading_commands_want_profiles_and_create_none(cli, home):
    for command in (["list"], ["show", "chat"], ["export", "chat"]):
        refused = cli.json(*command, status=1)
        assert (refused["code"], refused["value"]) == ("no-state", str(home.root))
    assert not home.database.exists()


def launch(home, state, reason="", **more):
    folder = home.launch(f"20991120-095145-{len(list(home.launches.iterdir())):04x}")
    folder.mkdir(parents=True)
    started = time.time() + 5
    record = {"id": folder.name, "profile": "chat", "revision": "r1", "started": started, "state": state, **more}
    (folder / "launch.json").write_text(json.dumps({**record, "reason": reason}))


def test_the_list_says_which_launch_was_cut_off(cli, file, home):
    """A launch without an end runs only while a front door holds the state folder's lock."""
    cli("import", "--yes", file({"name": "chat", "model": {"path": "Tiny"}}))

    def last_launch():
        return next(line for line in cli("list").splitlines() if line.startswith("chat"))

    launch(home, "ready", ready_after_s=2.0)
    with home.lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "ready after" in last_launch()
    assert "cut off" in last_launch()
    launch(home, "failed", cut_off=True)
    assert "cut off" in last_launch()
    launch(home, "failed", "it fell")
    assert "failed" in last_launch()


def test_a_row_of_the_list_is_one_line(cli, file, home):
    path = "/".join(["a-folder-with-a-long-name"] * 20 + ["Tiny-7B"])
    cli("import", "--yes", file({"name": "chat", "model": {"path": path}}))
    [row] = [line for line in cli("list").splitlines() if "Tiny-7B" in line]
    assert path in row
    assert row.startswith("chat")


def test_on_a_terminal_a_long_path_shows_its_end(cli, file, home):
    cli("import", "--yes", file({"name": "chat", "model": {"path": "a-folder-with-a-long-name/" * 9 + "Tiny-7B"}}))
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [*COMMAND, "list"],
        env={**cli.environ, "COLUMNS": "100"}, stdin=subprocess.DEVNULL, stdout=theirs, timeout=60, check=True,
    )  # fmt: skip
    assert done.returncode == 0
    [row] = [line for line in os.read(ours, 65536).decode().splitlines() if line.startswith("chat")]
    assert "Tiny-7B" in row
    os.close(ours)
    os.close(theirs)


def test_a_database_of_a_newer_version_is_refused(cli, home):
    cli("import", "-", stdin="{name: chat, model: {path: Tiny}}")
    with sqlite3.connect(home.database) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    assert "'9999'" in cli("list", status=1)


def test_a_damaged_database_is_refused_in_words(cli, home):
    home.database.parent.mkdir(parents=True, exist_ok=True)
    home.database.write_bytes(b"this is no database" * 100)
    said = cli("list", status=1)
    assert str(home.database) in said
    assert "Traceback" not in said


def test_help_tells_the_exit_statuses(cli):
    for command in ([], ["list"], ["show"], ["export"], ["import"], ["activate"], ["rollback"]):
        assert "3  preflight found errors" in cli(*command, "--help")
