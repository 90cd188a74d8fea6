"""`ingot diagnose`: for people and for programs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from appliance.diagnosis import diagnose_command
from appliance.diagnosis.causes import FAMILIES
from appliance.diagnosis.diagnose_command import diagnose
from appliance.diagnosis.outcome import by_state
from appliance.home import Home
from appliance.home_lock import OwnerLock
from appliance.protocol import LaunchRecord, State
from appliance.supervisor.abandoned import close_abandoned
from tests.diagnosis import made_up_logs as logs
from tests.running import INGOT


def run(*arguments: str, home: Path, stdin: bytes | None = None) -> Result:
    return CliRunner(env={"INGOT_HOME": str(home)}).invoke(diagnose, list(arguments), input=stdin)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "some.log"
    path.write_text(logs.VLLM_WORKERS)
    return path


def test_a_person_reads_cause_evidence_and_what_to_do(log: Path, tmp_path: Path) -> None:
    """In this order."""
    result = run(str(log), home=tmp_path)
    assert result.exit_code == 1
    wanted = ["1.25 GiB", "memory: gpu-out-of-memory", "9  torch.OutOfMemoryError", "gpu-memory-utilization: 0.8"]
    places = [result.output.index(part) for part in wanted]
    assert places == sorted(places)


def test_a_program_reads_an_object(log: Path, tmp_path: Path) -> None:
    """The same from a file and from standard input."""
    result = run(str(log), "--json", home=tmp_path)
    told = json.loads(result.output)
    assert told["outcome"] == "failed"
    assert told["family"] in FAMILIES
    assert told["cause"] == "gpu-out-of-memory"
    assert [line["line"] for line in told["evidence"]] == [6, 9]
    assert told["evidence"][1]["text"].startswith("torch.OutOfMemoryError")
    assert told["fix"]["patch"] == {"gpu-memory-utilization": 0.8}
    assert json.loads(run("-", "--json", home=tmp_path, stdin=log.read_bytes()).output) == told


OUTCOMES = {
    "serves": (logs.HEALTHY_SGLANG, 0),
    "failed": (logs.NATIVE, 1),
    "not-ready": ("INFO 11-20 10:02:15 [gpu_model_runner.py:2602] Starting to load model /m...\n", 3),
    "cannot-tell": ("apples\npears\n", 4),
}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_each_outcome_has_its_exit_status(outcome: str, tmp_path: Path) -> None:
    """A fix stands only where something is wrong."""
    text, status = OUTCOMES[outcome]
    result = run("-", "--json", home=tmp_path, stdin=text.encode())
    told = json.loads(result.output)
    assert (result.exit_code, told["outcome"]) == (status, outcome)
    assert (told["family"], told["fix"] is not None) == (None, outcome == "failed")
    assert run("-", home=tmp_path, stdin=text.encode()).exit_code == status


STATES = {
    State.READY: "serves", State.STARTING: "not-ready", State.STOPPED: "not-ready", State.FAILED: "failed",
}  # fmt: skip


@pytest.mark.parametrize("state", STATES)
def test_of_a_launch_its_supervisor_knows_the_outcome(state: State, tmp_path: Path) -> None:
    """Where the log shows no failure: our own engine does not log that it serves."""
    folder = tmp_path / "launches" / "20251120-3"
    folder.mkdir(parents=True)
    (folder / "engine.log").write_text("/m loaded on cpu in float32 after 1.20 s\n")
    record = LaunchRecord(id="20251120-3", profile="x", started=0.0, state=state)
    (folder / "launch.json").write_bytes(msgspec.json.encode(record))
    front_door = OwnerLock(Home.at(tmp_path).lock)
    assert json.loads(run("20251120-3", "--json", home=tmp_path).output)["outcome"] == STATES[state]
    front_door.release()


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("state", [State.READY, State.DRAINING, State.STARTING])
def test_a_launch_whose_front_door_was_killed_was_cut_off(state: State, closed: bool, tmp_path: Path) -> None:
    """Before the next start, which records it so, and after it."""
    folder = tmp_path / "launches" / "20251120-4"
    folder.mkdir(parents=True)
    (folder / "engine.log").write_text("/m loaded on cpu in float32 after 1.20 s\n")
    record = LaunchRecord(id="20251120-4", profile="x", started=0.0, state=state)
    (folder / "launch.json").write_bytes(msgspec.json.encode(record))
    if closed:
        close_abandoned(Home.at(tmp_path))
    result = run("20251120-4", "--json", home=tmp_path)
    told = json.loads(result.output)
    assert (result.exit_code, told["outcome"], told["family"], told["cause"]) == (1, "failed", "host", "cut-off")


def test_a_copied_folder_does_not_say_whether_its_launch_still_runs(tmp_path: Path) -> None:
    (tmp_path / "engine.log").write_text("/m loaded on cpu in float32 after 1.20 s\n")
    record = LaunchRecord(id="20251120-5", profile="x", started=0.0, state=State.READY)
    (tmp_path / "launch.json").write_bytes(msgspec.json.encode(record))
    assert run(str(tmp_path), home=tmp_path / "none").exit_code == 0


def test_a_reason_that_is_a_sentence_keeps_its_one_full_stop(tmp_path: Path) -> None:
    record = LaunchRecord(id="a", profile="x", started=0.0, state=State.STOPPED, reason="Stopped by admin.")
    told = by_state(record, runs=False)
    assert told is not None
    assert told.summary.count(".") == 1


def test_a_launch_is_found_by_its_id(tmp_path: Path) -> None:
    """A hung one with what its supervisor saw."""
    folder = tmp_path / "launches" / "20251120-1"
    folder.mkdir(parents=True)
    (folder / "engine.log").write_text("INFO loading\n")
    record = LaunchRecord(id="20251120-1", profile="x", started=0.0, state=State.HUNG, reason="silent for 30 s")
    (folder / "launch.json").write_bytes(msgspec.json.encode(record))
    (folder / "stacks.txt").write_text("Process 7: vllm\n    all_reduce (torch/distributed/distributed_c10d.py:9)\n")
    for name in ("20251120-1", str(folder)):
        told = json.loads(run(name, "--json", home=tmp_path).output)
        assert told["family"] == "nccl"
        assert "silent for 30 s" in told["summary"]


def test_a_launch_is_reported_with_what_it_was_set_to(tmp_path: Path) -> None:
    """Half of the context that its own profile asks for, and never more than that."""
    folder = tmp_path / "launches" / "20251120-2"
    folder.mkdir(parents=True)
    (folder / "engine.log").write_text("MemoryError: no memory\n")
    for profile, patch in (("max-model-len: 512\n", {"max-model-len": 256}), ("name: x\n", None), ("- {", None)):
        (folder / "profile.yaml").write_text(profile)
        told = json.loads(run("20251120-2", "--json", home=tmp_path).output)
        assert (told["cause"], told["fix"].get("patch")) == ("host-out-of-memory", patch)


@pytest.mark.parametrize(("content", "status"), [(None, 2), (b"\x7fELF" + b"\0\1" * 500, 2), (b"", 4)])
def test_what_is_no_log_is_said_so(content: bytes | None, status: int, tmp_path: Path) -> None:
    """Missing, binary, empty."""
    path = tmp_path / "x"
    if content is not None:
        path.write_bytes(content)
    result = run(str(path), home=tmp_path)
    assert result.exit_code == status
    assert result.output.strip()
    assert "Traceback" not in result.output


def test_a_folder_without_a_log_and_one_without_rights(tmp_path: Path) -> None:
    """Said in a sentence."""
    result = run(str(tmp_path), home=tmp_path)
    assert result.exit_code == 2
    assert "engine.log" in result.output


def test_windows_text_is_read(tmp_path: Path) -> None:
    """UTF-16 with its mark, and carriage returns."""
    path = tmp_path / "x.log"
    path.write_bytes(logs.VLLM_ARGUMENT.replace("\n", "\r\n").encode("utf-16"))
    assert json.loads(run(str(path), "--json", home=tmp_path).output)["cause"] == "context-too-long"


def of_kind(kind: str, path: Path) -> Path:
    """Something of that kind that is no file."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as unix:
            unix.bind(str(path))
    elif kind == "folder":
        path.mkdir()
    return Path("/dev/zero") if kind == "device" else path


@pytest.mark.parametrize("kind", ["device", "pipe", "socket", "folder"])
def test_what_never_ends_is_not_read(kind: str, tmp_path: Path) -> None:
    """A child, since a wrong one would wait for ever."""
    path = of_kind(kind, tmp_path / "x")
    done = subprocess.run([*INGOT, "diagnose", str(path)], capture_output=True, timeout=30, check=False)
    assert done.returncode == 2
    assert str(path) in done.stderr.decode()


@pytest.mark.parametrize("command", [["profile", "import"], ["check", "--profile"]])
@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_nor_is_it_as_a_profile(command: list[str], kind: str, tmp_path: Path) -> None:
    path = of_kind(kind, tmp_path / "x")
    done = subprocess.run([*INGOT, *command, str(path)], capture_output=True, timeout=30, check=False)
    assert done.returncode in (1, 2)
    assert str(path) in done.stderr.decode()


def test_a_pipe_that_somebody_writes_to_is_read(log: Path, tmp_path: Path) -> None:
    """As of `ingot diagnose <(docker logs engine)`; the writer may come late with its first word."""
    ours, theirs = os.pipe()
    with subprocess.Popen(
        [*INGOT, "diagnose", f"/dev/fd/{ours}", "--json"], stdout=subprocess.PIPE, pass_fds=[ours]
    ) as child:
        os.close(ours)
        time.sleep(0.5)
        os.write(theirs, log.read_bytes())
        os.close(theirs)
        told = json.loads(child.communicate(timeout=30)[0])
    assert told["cause"] == "gpu-out-of-memory"


def test_a_stream_without_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnose_command, "MAX_STREAM_BYTES", 1 << 10)
    assert run("-", home=tmp_path, stdin=b"x" * 1025).exit_code == 2
    assert run("-", home=tmp_path, stdin=b"x" * 1024).exit_code == 4
