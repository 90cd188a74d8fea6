"""`ingot up`, the real command in a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import httpx
import psutil
import pytest
from click.testing import CliRunner

from appliance import recent_homes
from appliance.home_lock import read_owner
from appliance.profile.active import ActiveProfile, read_active, write_active
from console import address, run, up_command
from console.db import schema
from tests import tiny
from tests.console.conftest import PASSWORD

LINK = r"http://127\.0\.0\.1:\d+/setup\?code=\S+"
ENDS_WITHIN_S = 15.0
"""Nobody waits for what an open page, or Docker, might still say."""


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.mark.parametrize(("flag", "port"), [("--port", "99999"), ("--port", "-1"), ("--engine-port", "0")])
def test_a_port_that_cannot_be_is_an_error_of_its_flag(home, flag, port):
    result = CliRunner().invoke(up_command.up, [flag, port], env={"INGOT_HOME": str(home.root)})
    assert result.exit_code == 2
    assert f"'{flag}'" in result.output
    assert "INGOT_" not in result.output


class Up:
    """The command, its output so far, and its end."""

    def __init__(self, home, *flags: str, port: int | None = None, engine_port: int | None = None) -> None:
        self.port = port or _free_port()
        self.engine_port = engine_port or _free_port()
        command = [sys.executable, "-m", "appliance.cli", "up", "--port", str(self.port)]
        self._output = home.root / "up-output"
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                [*command, "--engine-port", str(self.engine_port), *flags],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "INGOT_HOME": str(home.root)},
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def until(self, pattern: str, seconds: float = 20.0) -> re.Match:
        deadline = time.monotonic() + seconds
        while True:
            if found := re.search(pattern, self.output):
                return found
            assert time.monotonic() < deadline, self.output
            assert self.process.poll() is None, self.output
            time.sleep(0.02)

    def end(self, number: int = signal.SIGINT) -> float:
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(20)
        return time.monotonic() - began


@pytest.fixture
def up(home):
    started: list[Up] = []

    def start(*flags: str, **ports: int) -> Up:
        started.append(Up(home, *flags, **ports))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.end()


@pytest.fixture
def small(home):
    """A tiny checkpoint, active."""
    tiny.write_checkpoint(home.models / "small")
    document = {"schema": 1, "name": "small", "model": {"path": "small"}, "device": "cpu", "max-model-len": 64}
    write_active(home, ActiveProfile(launch=None, revision="r1", document=document))
    return home


def test_the_way_in_is_printed_and_answers(up, home):
    """A first start prints a link with the set-up code; it answers at once, engine or not."""
    console = up("--no-engine")
    link = console.until(LINK)[0]
    assert recent_homes.recent()[0] == home.root
    assert httpx.get(link, trust_env=False).status_code == 200
    code = link.split("=")[1]
    assert httpx.get(link, trust_env=False).text.count(code) == 1
    assert console.end() < ENDS_WITHIN_S


def test_the_set_up_link_can_be_renewed_until_there_is_an_account(up, home):
    """For whom it has scrolled away: the old one no longer works."""

    def renewed() -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-m", "appliance.cli", "up", "--setup-link"],
            env={**os.environ, "INGOT_HOME": str(home.root)},
            capture_output=True,
            text=True,
            timeout=30,
        )

    assert (renewed().returncode, home.database.exists()) == (1, False)
    console = up("--no-engine")
    first = console.until(LINK)[0]
    again = renewed()
    link = re.search(LINK, again.stdout)[0]
    assert (again.returncode, link != first) == (0, True)
    assert "API " not in console.output

    def opens(found: str) -> bool:
        page, code = found.split("?code=")
        form = {"code": code, "name": "admin", "password": PASSWORD}
        return httpx.post(page, data=form, headers={"Sec-Fetch-Site": "same-origin"}, trust_env=False).is_redirect

    assert not opens(first)
    assert opens(link)
    assert (renewed().returncode, renewed().stdout) == (1, "")


def test_a_killed_engine_and_its_next_launch_are_told(up, small):
    """And the API's address, with a line to try that works as it stands."""
    console = up()
    base = console.until(r"API\s+(http://127\.0\.0\.1:\d+)/v1")[1]
    assert base.endswith(f":{console.engine_port}")
    console.until("small r1: ready after", 60)
    line = console.until(r"curl .*")[0]
    assert base in line
    sent = json.loads(line.partition("-d ")[2].strip("'"))
    answer = httpx.post(f"{base}/v1/completions", content=json.dumps(sent), trust_env=False, timeout=60)
    assert answer.status_code == 200
    psutil.Process(read_owner(small.lock).pid).kill()
    console.until(r"small r1: failed: .*SIGKILL", 20)


async def test_the_address_is_written_before_the_way_in_is_printed(config, control, monkeypatch):
    """Whoever waits for the link may go on with other commands, which look for the console in its folder."""
    found = []

    def print_way_in(*_):
        found.append(address.find(config.home))
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(run, "print_way_in", print_way_in)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert await run.serve(config, control, listening, start_engine=False) == 0
    assert found == [f"http://127.0.0.1:{config.port}"]
    assert address.find(config.home) is None


def test_in_a_container_without_docker(up, home, monkeypatch, tmp_path):
    """The link carries the published address; that Docker cannot be reached is told, and the console serves on."""
    monkeypatch.setenv("INGOT_ENGINE_CONTROL", "docker")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    monkeypatch.setenv("INGOT_CONSOLE_URL", "http://127.0.0.1:9/")
    console = up()
    code = console.until(r"http://127\.0\.0\.1:9/setup\?code=(\S+)")[1]
    console.until(r"Engine\s+Docker cannot be reached")
    answer = httpx.get(f"http://127.0.0.1:{console.port}/setup?code={code}", trust_env=False)
    assert answer.status_code == 200
    assert console.end() < ENDS_WITHIN_S


def test_console_and_engine_run_and_end_together(up, small):
    """The engine comes up beside the console and is told ready; Ctrl-C ends both quickly and leaves nothing."""
    console = up()
    console.until(r"Engine\s+\d\d:\d\d:\d\d  small r1: ready after", 60)
    assert console.output.count("Engine ") == 1
    health = httpx.get(f"http://127.0.0.1:{console.engine_port}/health", trust_env=False)
    assert health.status_code == 200
    owner = read_owner(small.lock)
    family = [psutil.Process(owner.pid), *psutil.Process(owner.pid).children(recursive=True)]
    assert len(family) >= 2
    with httpx.stream("GET", f"http://127.0.0.1:{console.port}/sign-in", trust_env=False):
        assert console.end() < ENDS_WITHIN_S
    assert console.process.returncode == 0
    _, alive = psutil.wait_procs(family, timeout=20)
    assert alive == []


def test_a_new_folder_gets_the_bundled_profile(up, home):
    """Revision 1 of ingot-guide is active, in the file that the engine reads and in the database."""
    console = up()
    console.until(r"setup\?code=")
    active = read_active(home)
    assert active.revision == "r1"
    assert active.document["name"] == "ingot-guide"
    console.end()
    import sqlite3

    with sqlite3.connect(home.database) as database:
        rows = database.execute(
            "SELECT name, number, document FROM active_revision JOIN revisions r ON r.id = revision_id "
            "JOIN profiles p ON p.id = profile_id"
        ).fetchall()
    assert [(name, number) for name, number, _ in rows] == [("ingot-guide", 1)]


@pytest.mark.parametrize("which", ["--port", "--engine-port"])
def test_a_port_that_is_taken(up, home, which):
    """Who holds it and the flag that chooses another; nothing is left running, and the folder is not noted."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        console = up(port=port) if which == "--port" else up(engine_port=port)
        console.process.wait(20)
    assert console.process.returncode == 1
    assert str(port) in console.output
    assert f"(process {os.getpid()})" in console.output
    assert which in console.output
    assert "Traceback" not in console.output
    assert home.root not in recent_homes.recent()


def test_one_port_for_both_is_a_usage_error(up, home):
    """Before anything is made or taken; without an engine the port is the console's alone."""
    port = _free_port()
    both = up(port=port, engine_port=port)
    both.process.wait(20)
    assert both.process.returncode == 2
    assert str(port) in both.output
    assert not home.database.exists()
    alone = up("--no-engine", port=port, engine_port=port)
    alone.until(r"setup\?code=")


def test_a_second_console_on_the_same_folder_is_refused_and_harms_nothing(up, home):
    """It says who holds the folder; the first one's link, address and engine stay as they are."""
    first = up("--no-engine")
    first.until("setup")
    link = first.output
    address = (home.root / "console.json").read_text()
    second = subprocess.run(
        [sys.executable, "-m", "appliance.cli", "up", "--no-engine", "--port", str(_free_port())],
        env={**os.environ, "INGOT_HOME": str(home.root)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert second.returncode == 3
    assert f"process {first.process.pid}, http://127.0.0.1:{first.port}" in second.stderr
    assert (home.root / "console.json").read_text() == address
    assert first.output == link
    assert httpx.get(f"http://127.0.0.1:{first.port}/sign-in", trust_env=False).status_code < 400


def test_a_damaged_database_is_refused(up, home):
    """What is wrong with which file, and where copies are; no trace, and the engine is not left behind."""
    home.database.write_bytes(b"this is no database" * 100)
    console = up()
    console.process.wait(20)
    assert console.process.returncode == 1
    assert str(home.database) in console.output
    assert "Traceback" not in console.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_every_way_to_end_takes_the_engine_along(up, small, number):
    """A closed terminal or a service manager leaves no engine behind, not even while it starts."""
    console = up()
    console.until(r"setup\?code=")
    owner = read_owner(small.lock)
    console.end(number)
    assert owner is None or not psutil.pid_exists(owner.pid)


def test_a_newer_database_is_refused(up, home):
    """The message is all there is: no trace, no engine left behind."""
    import sqlite3

    schema.migrate(home.database, home.root / "backups")
    with sqlite3.connect(home.database) as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    console = up()
    console.process.wait(20)
    assert console.process.returncode == 1
    assert "newer" in console.output
    assert "Traceback" not in console.output


@pytest.mark.parametrize(
    ("variable", "value"),
    [("INGOT_CONSOLE_PORT", "eighty"), ("INGOT_ENGINE_CONTROL", "magic"), ("INGOT_HOME", "/proc/x")],
)
def test_settings_that_cannot_be(variable, value):
    """A setting is named with its value and what is allowed."""
    shown = subprocess.run(
        [sys.executable, "-m", "appliance.cli", "up"],
        capture_output=True,
        text=True,
        env={**os.environ, variable: value},
    )
    assert shown.returncode == 1
    assert variable in shown.stderr
    assert value in shown.stderr
    assert "Traceback" not in shown.stderr
