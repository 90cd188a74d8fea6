"""`ingot logs` as a person and as a program uses it: a real process on a real state folder, without any server."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from console.logs.logs_command import logs
from tests.console.launch_folders import WrittenLaunch, failed_launch, ready_launch

OLD, NEW = "20261120-100000-aaaa", "20261120-110000-bbbb"
COMMAND = [sys.executable, "-c", "from appliance.cli import main; main()", "logs"]


def run(home, *arguments):
    return CliRunner().invoke(logs, list(arguments), env={"INGOT_HOME": str(home.root)})


def test_the_present_log(home):
    """Without a choice: the last lines of the engine's launch, without colours where nobody sees them."""
    ready_launch(home, OLD)
    ready_launch(home, NEW).log("\x1b[31mERROR\x1b[0m out of \x00memory")
    result = run(home)
    assert result.exit_code == 0
    assert result.output == "INFO core starts\nINFO reading weights\nERROR out of ␀memory\n"
    assert run(home, "-n", "1").output == "ERROR out of ␀memory\n"
    assert run(home, "--lines", "0").output == ""
    assert run(home, "--lines", "all", "--launch", OLD).output == "INFO core starts\nINFO reading weights\n"
    assert run(home, "-n", "1", "--launch", "latest").output == "ERROR out of ␀memory\n"


def test_for_programs(home):
    """One JSON object a line, with the line's number in the file, whole and clean."""
    ready_launch(home, NEW).log(
        "(EngineCore_DP0 pid=7) ERROR 11-20 10:00:00 [core.py:1] \x1b[1mout\x1b[0m", "x" * 20_000
    )
    rows = [json.loads(line) for line in run(home, "--json", "-n", "2").output.splitlines()]
    assert rows[0] == {
        "launch": NEW,
        "number": 3,
        "level": "error",
        "process": "EngineCore_DP0",
        "time": "10:00:00",
        "text": "(EngineCore_DP0 pid=7) ERROR 11-20 10:00:00 [core.py:1] out",
    }
    assert (rows[1]["number"], rows[1]["text"]) == (4, "x" * 20_000)


def test_the_end_of_a_large_log_is_found_at_once(home):
    """Lines across the blocks in which the file is read backwards, and numbered right."""
    launch = ready_launch(home, NEW)
    with (launch.folder / "engine.log").open("w") as file:
        file.writelines(f"line {number} {'x' * (number % 977)}\n" for number in range(1, 20_001))
        file.write("unfinished")
    for count in (1, 2, 2500, 19_999, 20_000, 50_000):
        rows = [json.loads(line) for line in run(home, "--json", "-n", str(count)).output.splitlines()]
        first = max(20_000 - count + 1, 1)
        assert [row["number"] for row in rows] == list(range(first, 20_002))
        assert rows[0]["text"].startswith(f"line {first} ")
        assert rows[-1]["text"] == "unfinished"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--launch", "../../etc"), "../../etc"),
        (("--launch", "20260101-000000-0000"), NEW),
        (("-n", "-3"), "'-3'"),
        (("-n", "many"), "'many'"),
    ],
)
def test_what_makes_no_sense(home, arguments, says):
    """Says what was wrong and what there is, and exits with an error."""
    ready_launch(home, NEW)
    result = run(home, *arguments)
    assert result.exit_code != 0
    assert says in result.output


def test_nothing_to_show(home):
    """No launch at all, and a launch that was refused before an engine was started."""
    assert run(home).exit_code == 1
    ready_launch(home, OLD)
    (failed_launch(home, NEW).folder / "engine.log").unlink()
    result = run(home)
    assert result.exit_code == 1
    assert OLD in result.output


@pytest.fixture
def following(home):
    """`ingot logs --follow` as a process of its own."""
    started = []

    def start(*arguments):
        process = subprocess.Popen(
            [*COMMAND, "--follow", *arguments],
            env={**os.environ, "INGOT_HOME": str(home.root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Whoever runs the tests in the background of a shell has had Ctrl-C ignored, for all children too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_follow_goes_on_across_restarts(home, following):
    """Lines come as they are written, from one launch to the next, and Ctrl-C ends it quietly."""
    launch = ready_launch(home, OLD)
    process = following("-n", "1")
    assert process.stdout.readline() == "INFO reading weights\n"
    launch.log("one", "two")
    assert [process.stdout.readline() for _ in range(2)] == ["one\n", "two\n"]
    WrittenLaunch(home, NEW).log("three")
    assert process.stdout.readline() == "three\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert process.stderr.read() == f"-- launch {NEW} --\n"


def test_follow_waits_for_the_first_launch(home, following):
    """An empty state folder is no error for somebody who waits; it is named on standard error."""
    process = following("--json")
    assert str(home.launches) in process.stderr.readline()
    ready_launch(home, NEW)
    assert json.loads(process.stdout.readline())["text"] == "INFO core starts"


def test_a_closed_pipe_is_no_traceback(home):
    """`ingot logs | head -1`."""
    ready_launch(home, NEW).log(*(f"row {number}" for number in range(50_000)))
    command = " ".join(f"'{part}'" for part in COMMAND) + " -n all | head -1"
    environment = {**os.environ, "INGOT_HOME": str(home.root)}
    result = subprocess.run(
        command, shell=True, capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert (result.stdout, result.stderr) == ("INFO core starts\n", "")


def test_a_terminal_keeps_colours_and_is_not_steered(home):
    """Colours pass; titles, cursor moves and clearing do not."""
    ready_launch(home, NEW).log("\x1b[31mred\x1b[0m \x1b]0;evil\x07\x1b[2Jend\x1b[1m")
    master, slave = pty.openpty()
    environment = {**os.environ, "INGOT_HOME": str(home.root), "TERM": "xterm"}
    process = subprocess.Popen([*COMMAND, "-n", "1"], env=environment, stdout=slave, stderr=slave)
    process.wait(30)
    os.close(slave)
    shown = os.read(master, 10_000)
    os.close(master)
    assert shown == b"\x1b[31mred\x1b[0m end\x1b[1m\x1b[0m\r\n"
