"""Docker's words in ours: inspections, events, refusals. Captured from Docker 26, except those of images, full disks,
removal, refused mounts, limits and NVIDIA's hook, which are as we know them and were not provoked here."""

from __future__ import annotations

import re

import pytest

from console.engine_control.docker_inspection import DOCKER_EVENTS, read_event, read_inspection
from console.engine_control.docker_output import Place, StampedLine
from console.engine_control.docker_problems import ROWS, problem_of, refused_by_gate, unreachable

RUNC = (
    "failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: "
)
TOO_OLD = "unsatisfied condition: cuda>=13.0, please update your driver to a newer version, or use an earlier container"
PORT = "driver failed programming external connectivity on endpoint ingot-engine (820852418cc): "
HOOK = "error running hook #0: error running hook: exit status 1, stdout: , stderr: "


def inspection(**state) -> dict:
    return {
        "Name": "/ingot-engine",
        "RestartCount": 6,
        "HostConfig": {"Memory": 8 << 30},
        "State": {"Status": "exited", "Running": False, "ExitCode": 0, **state},
    }


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"ExitCode": 1}, (False, "exit status 1", 1, False)),
        ({"ExitCode": 137}, (False, "killed by SIGKILL", 137, False)),
        ({"ExitCode": 143}, (False, "killed by SIGTERM", 0, False)),
        ({"OOMKilled": True, "ExitCode": 0}, (False, "out of memory", 0, True)),
        ({"OOMKilled": True, "ExitCode": 137}, (False, "out of memory", 137, True)),
        ({"OOMKilled": True, "ExitCode": 143}, (False, "killed by SIGTERM", 0, False)),
        ({"Status": "created"}, (False, None, None, False)),
        ({"Status": "created", "ExitCode": 128, "Error": "no GPU"}, (False, None, 128, False)),
        ({"Running": True, "Restarting": True, "ExitCode": 3}, (False, "exit status 3", 3, False)),
    ],
)
def test_inspection_of_an_ended_container(state, expected):
    """Running out of memory is told as such, whatever the exit code, unless it was stopped later; a container that
    never began did not end; one that waits to be started again does not run, whatever Docker calls it."""
    status = read_inspection(inspection(**state))
    assert (status.running, status.ended, status.exit_code, status.out_of_memory) == expected


def test_inspection_of_a_running_container():
    """Since when, and whether it is healthy; Docker's nine digits of a second are read."""
    started = "2026-11-20T09:51:45.123456789Z"
    state = {"Status": "running", "Running": True, "StartedAt": started, "Health": {"Status": "healthy"}}
    status = read_inspection(inspection(**state))
    assert status.running
    assert status.since == pytest.approx(1795168305.123456)
    assert status.health == "healthy"
    assert status.problem is None


@pytest.mark.parametrize(
    ("state", "id", "said"),
    [
        ({"OOMKilled": True}, "out-of-memory", "8.0 GiB"),
        ({"Status": "paused", "Running": True, "Paused": True}, "container-paused", "ingot-engine"),
        ({"Running": True, "Restarting": True, "ExitCode": 3}, "container-restarting", "exit status 3"),
        ({"Status": "dead"}, "container-removing", "ingot-engine"),
        ({"Status": "created", "Error": "network n1 not found", "ExitCode": 128}, "network-missing", "n1"),
    ],
)
def test_what_is_wrong_with_a_container(state, id, said):
    """Each with a fix, and a command for it."""
    problem = read_inspection(inspection(**state)).problem
    assert problem is not None
    assert problem.id == id
    assert said in problem.message
    assert problem.fix is not None
    assert problem.fix.command or problem.fix.look


@pytest.mark.parametrize(
    ("text", "id", "said"),
    [
        ("No such container: ingot-engine", "container-missing", "ingot-engine"),
        ('could not select device driver "" with capabilities: [[gpu]]', "container-toolkit-missing", "toolkit"),
        (
            f"{RUNC}{HOOK}nvidia-container-cli: requirement error: {TOO_OLD}: unknown",
            "driver-too-old-for-image",
            "cuda>=13.0",
        ),
        (
            f"{RUNC}{HOOK}nvidia-container-cli: device error: MIG-1-2-3: unknown device: unknown",
            "mig-slice-unknown",
            "MIG slice",
        ),
        (f"{PORT}Bind for 0.0.0.0:8000 failed: port is already allocated", "port-taken", "0.0.0.0:8000"),
        (
            f"{PORT}Error starting userland proxy: listen tcp4 0.0.0.0:8000: bind: address already in use",
            "port-taken",
            "0.0.0.0:8000",
        ),
        (
            'invalid mount config for type "bind": bind source path does not exist: /srv/models',
            "mount-missing",
            "/srv/models",
        ),
        ("No such image: ingot-engine:1.2", "image-missing", "ingot-engine:1.2"),
        ("mkdir /var/lib/docker/overlay2/x: no space left on device", "disk-full", "disk"),
        ("network n1 not found", "network-missing", "n1"),
        ("cannot start a paused container, try unpause instead", "container-paused", "paused"),
        ("container is marked for removal and cannot be started", "container-removing", "removing"),
        (
            f'{RUNC}unable to start container process: exec: "ingot": executable file not found in $PATH: unknown',
            "command-missing",
            "ingot",
        ),
        ("unable to find user ingot: no matching entries in passwd file", "user-missing", "user ingot"),
        (
            'error gathering device information while adding custom device "/dev/nvidia0": no such file or directory',
            "device-missing",
            "/dev/nvidia0",
        ),
        ("unknown or invalid runtime name: kata", "runtime-missing", "kata"),
        ("Minimum memory limit allowed is 6MB", "container-limits", "6MB"),
        ("something that nobody has seen", "docker-refused", "something that nobody has seen"),
    ],
)
def test_what_docker_refuses(text, id, said):
    """The cause in a sentence, what to do, a command; and Docker's own words, which nobody has to believe us."""
    problem = problem_of(text, "ingot-engine")
    assert problem.id == id
    assert said in problem.message
    assert problem.fix is not None
    assert problem.fix.text
    assert problem.fix.command or problem.fix.look
    assert "{" not in problem.message + problem.fix.text
    assert text in " ".join((problem.message, *problem.evidence))


def test_every_row_has_an_example():
    """A row that no example reaches could be wrong for years."""
    marks = test_what_docker_refuses.pytestmark
    reached = {id for _, id, _ in marks[0].args[1]}
    assert {row.name for row in ROWS} - reached == {"mount-refused"}


def test_a_mount_that_is_refused():
    """With what runc says of a file where a folder is wanted."""
    text = f'{RUNC}unable to start container process: error during container init: error mounting "/srv/m" to rootfs'
    assert problem_of(text, "ingot-engine").id == "mount-refused"


def test_who_cannot_be_reached():
    """The gate and Docker have different fixes, and a gate that lives is not Docker."""
    assert "gate" in unreachable("tcp://gate:2375", "refused").fix.command
    assert "docker" in unreachable("unix:///var/run/docker.sock", "refused").fix.command
    assert refused_by_gate(503, "x").id == "docker-unreachable"
    assert refused_by_gate(403, "x").id == "gate-refused"


def event(action: str, name: str = "ingot-engine", **attributes) -> dict:
    return {"Action": action, "timeNano": 1795203555549576585, "Actor": {"Attributes": {"name": name, **attributes}}}


@pytest.mark.parametrize(
    ("document", "asked", "text", "failed"),
    [
        (event("start"), False, "started", False),
        (event("die", exitCode="0"), False, "ended: exit status 0", False),
        (event("die", exitCode="137"), False, "ended: killed by SIGKILL", True),
        (event("die", exitCode="137"), True, "ended: killed by SIGKILL", False),
        (event("die", exitCode="143"), False, "ended: killed by SIGTERM", False),
        (event("kill", signal="9"), False, "sent SIGKILL", False),
        (event("oom"), False, "a process was killed: out of memory", True),
        (event("rename", oldName="/foo"), False, "renamed from foo", False),
        (event("health_status: unhealthy"), False, "unhealthy", True),
    ],
)
def test_events_in_words(document, asked, text, failed):
    """With the time that Docker gives, and whether it is what somebody here wanted."""
    read = read_event(document, "ingot-engine", asked=asked)
    assert read is not None
    assert (read.text, read.failed) == (text, failed)
    assert read.at == pytest.approx(1795203555.549576)


def test_events_of_others_are_not_told():
    """Docker's filter lets those of `ingot-engine-two` through."""
    assert read_event(event("die", "ingot-engine-two", exitCode="1"), "ingot-engine") is None
    assert read_event(event("exec_create: sh"), "ingot-engine") is None
    assert len(DOCKER_EVENTS) > 5


def test_a_log_that_is_taken_up_again_tells_no_line_twice():
    """Docker gives again all from the first line of the last stamp on: one of stderr with an earlier stamp may be
    among them."""
    begins, fails, later = StampedLine("T1.5Z", "begins"), StampedLine("T1.4Z", "fails"), StampedLine("T2.0Z", "later")
    place = Place("one")
    assert [line.text for line in (begins, fails) if place.is_new(line)] == ["begins", "fails"]
    for new in ([], [later], []):
        assert "since=" in place.query(500)
        again = [begins, fails, *new] if place._stamp == begins.stamp else [later]
        assert [line.text for line in again if place.is_new(line)] == [line.text for line in new]
    place.query(500)
    assert place.is_new(StampedLine("T3.0Z", "after the log was cut"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_fix_fits_pages_and_terminals(row):
    """`ingot profile activate` prints it as well, where there is no button to press."""
    assert not re.search(r"\bpress\b", row.fix, re.I)
