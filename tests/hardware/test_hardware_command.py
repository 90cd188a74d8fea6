"""`ingot hardware`: for people, for programs, replayed and recorded."""

from __future__ import annotations

import json
import os
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from appliance.hardware import Inventory, inventory
from appliance.hardware.engine_machine import place, telling, this_machine
from appliance.hardware.hardware_command import hardware
from appliance.hardware.machine import replayed
from appliance.hardware.patience import Patience
from appliance.hardware.record import record
from appliance.hardware.replay import RecordingError, load_recording, replaying
from tests.hardware.recorded import RECORDINGS, machine_of

NAMES = sorted(path.stem for path in RECORDINGS.glob("*.json"))
DOCUMENT = Path(__file__).parents[2] / "docs" / "hardware.md"


def device(**answers: object) -> str:
    """A recording of one GPU that answers so."""
    sound = {"UUID": "GPU-1", "CudaComputeCapability": [9, 0], "MemoryInfo": {"total": 1, "free": 1}}
    return json.dumps({"about": "x", "nvml": {"devices": [sound | answers]}})


def run(*arguments: str, width: int = 110, **environ: str) -> Result:
    return CliRunner().invoke(hardware, arguments, env={"COLUMNS": str(width), **environ})


@pytest.mark.parametrize("width", [80, 110, 200])
@pytest.mark.parametrize("name", NAMES)
def test_every_device_is_shown_with_its_whole_uuid(name: str, width: int) -> None:
    """At any width; each problem with what to do; a problem makes the exit status 1."""
    found = machine_of(name)
    shown = run("--replay", str(RECORDINGS / f"{name}.json"), width=width)
    text = re.sub(r"\s+", "", shown.output)
    assert "Replayedfrom" in text
    for gpu in (*found.gpus, *found.divided):
        assert all(part in text for part in gpu.uuid.split("-"))
    for problem in found.problems:
        assert re.sub(r"\s+", "", problem.message) in text
        assert re.sub(r"\s+", "", problem.fix.command) in text
    assert shown.exit_code == (1 if found.problems else 0)
    assert max(len(line) for line in shown.output.splitlines()) <= width


def test_what_cannot_be_known_is_said() -> None:
    """Foreign processes, refused figures, memory that nobody who is named holds, shared memory."""
    container = " ".join(run("--replay", str(RECORDINGS / "mig-in-container.json")).output.split())
    assert "8.6 GiB in use by process 71" in container
    assert "power (insufficient permissions)" in container
    assert "8 cores of the machine's 96 (a quota of 8)" in container
    refused = " ".join(run("--replay", str(RECORDINGS / "processes-refused.json")).output.split())
    assert "59.8 GiB in use" in refused
    spark = " ".join(run("--replay", str(RECORDINGS / "dgx-spark.json"), width=200).output.split())
    assert "27.3 GiB of 121.7 GiB, shared with the processor" in spark


def test_the_json_is_the_inventory() -> None:
    """Fields under their names; what another program writes back is the same."""
    import msgspec

    shown = run("--json", "--replay", str(RECORDINGS / "a100-mig.json"))
    found, expected = msgspec.json.decode(shown.output, type=Inventory), machine_of("a100-mig")
    assert (found.gpus, found.divided, found.replayed) == (expected.gpus, expected.divided, expected.replayed)
    assert found.host.memory_bytes == expected.host.memory_bytes  # other figures of the host are this machine's
    assert json.loads(shown.output)["gpus"][0]["mig_profile"] == "3g.40gb"


def test_every_field_of_the_json_is_documented() -> None:
    text = DOCUMENT.read_text()
    found = json.loads(run("--json", "--replay", str(RECORDINGS / "rtx-pro-6000.json")).output)
    gpu = found["gpus"][0]
    fields = {*found, *gpu, *found["host"], *found["host"]["disks"][0], *gpu["processes"][0]}
    assert not {field for field in fields if f"`{field}`" not in text}


def test_a_machine_that_is_recorded_reads_the_same_when_it_is_replayed(tmp_path: Path) -> None:
    """Every recording, recorded again from its own replay; and this machine."""
    import msgspec

    for name in NAMES:
        original = load_recording(RECORDINGS / f"{name}.json")
        again = record(
            replaying(original),
            machine_of(name).host,
            about=name,
            pci=original.pci,
            kernel_driver=original.kernel_driver,
        )
        path = tmp_path / f"{name}.json"
        path.write_bytes(msgspec.json.encode(again))
        before, after = machine_of(name), replayed(path)
        assert (before.gpus, before.divided, before.problems) == (after.gpus, after.divided, after.problems)
    target = tmp_path / "this.json"
    assert run("--record", str(target)).exit_code == 0
    here, there = inventory(environ={}), replayed(target)
    assert [gpu.uuid for gpu in there.gpus] == [gpu.uuid for gpu in here.gpus]
    assert there.host.memory_bytes == here.host.memory_bytes


def test_the_variable_replays_everywhere(tmp_path: Path) -> None:
    """INGOT_HARDWARE stands in for `--replay`; one that cannot be read is a problem, never a failure."""
    recording = str(RECORDINGS / "h200-x8.json")
    assert json.loads(run("--json", INGOT_HARDWARE=recording).output)["replayed"] == recording
    assert len(this_machine({"INGOT_HARDWARE": recording}).inventory.gpus) == 8
    broken = inventory(environ={"INGOT_HARDWARE": str(tmp_path / "missing.json")})
    assert broken.gpus == ()
    assert [problem.id for problem in broken.problems] == ["hardware-recording"]
    assert "missing.json cannot be read" in broken.problem
    assert broken.replayed is None, "nothing was"


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "large"])
def test_only_a_file_of_sensible_size_is_read_as_a_recording(kind: str, tmp_path: Path) -> None:
    """A pipe would be waited for, /dev/zero never ends: both are refused at once, in either way of naming them."""
    path = Path("/dev/zero") if kind == "device" else tmp_path / "recording.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "large":
        path.touch()
        os.truncate(path, 1 << 40)
    said = "has more than" if kind == "large" else "it is not a file"
    refused = run("--replay", str(path))
    assert refused.exit_code == 2
    assert said in " ".join(refused.output.replace("│", " ").split())
    assert said in inventory(environ={"INGOT_HARDWARE": str(path)}).problem


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "wrong.json"),
        ("[]", "`array`"),
        ('{"about": "x"}', "missing required field `nvml`"),
        ('{"about": "x", "nvml": {}, "surprise": 1}', "unknown field `surprise`"),
        ('{"about": "x", "nvml": {}, "host": {"cores": "many"}}', "`$.cores`"),
        ('{"about": "x", "nvml": {}, "host": {"colour": 1}}', "colour"),
        ('{"about": "x", "nvml": {}, "format": 2}', "`$.format`"),
        (device(MemoryInfo=5), "NVML"),
        (device(MemoryInfo={"total": "much"}), "NVML"),
        (device(CudaComputeCapability="9.0"), "NVML"),
        (device(MigMode=[1, 1], slices=7), "NVML"),
    ],
)
def test_a_file_that_is_no_recording_is_refused_with_where(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(text)
    with pytest.raises(RecordingError) as caught:
        replayed(path)
    assert said in str(caught.value)
    refused = run("--replay", str(path))
    assert refused.exit_code == 2
    assert "wrong.json" in refused.output


def test_nothing_can_be_recorded_where_nothing_can_be_written(tmp_path: Path) -> None:
    refused = run("--record", str(tmp_path / "no" / "folder.json"))
    assert (refused.exit_code, "folder.json" in refused.output) == (1, True)


def test_a_driver_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is just the one that somebody wants to record."""
    released = threading.Event()
    hanging = SimpleNamespace(nvmlInit=released.wait, NVMLError=RuntimeError)
    monkeypatch.setattr("appliance.hardware.hardware_command.load_nvml", lambda: hanging)
    monkeypatch.setattr(Patience.__init__, "__defaults__", (0.1,))
    refused = run("--record", str(tmp_path / "recording.json"))
    released.set()
    assert (refused.exit_code, "0.1 s" in refused.output) == (1, True)


def test_secrets_of_the_environment_are_not_shown() -> None:
    """Only variables that say how models are run leave the machine, and none that may be a secret."""
    given = {
        "CUDA_VISIBLE_DEVICES": "0", "VLLM_USE_V1": "1", "NCCL_DEBUG": "INFO", "PATH": "/bin", "INGOT_CAST": "/c",
        "HF_TOKEN": "hf_1", "VLLM_API_KEY": "k", "INGOT_SECRET": "s", "AWS_PROFILE": "a", "HTTP_PROXY": "http://u:p@x",
    }  # fmt: skip
    kept = {"CUDA_VISIBLE_DEVICES", "VLLM_USE_V1", "NCCL_DEBUG", "PATH", "INGOT_CAST"}
    assert set(telling(given)) == kept
    assert set(this_machine(given).environ) == kept
    passwords = {"HF_PASS": "p", "RAY_PWD": "p", "NCCL_CREDENTIALS": "p", "VLLM_PASSPHRASE": "p"}
    assert telling(passwords) == {}
    addresses = {"HF_ENDPOINT": "https://user:p/w@host:3128/hub", "TMPDIR": "/tmp", "VLLM_X": "tcp://[::1]:5/a@b"}
    assert telling(addresses) == addresses | {"HF_ENDPOINT": "https://host:3128/hub"}


def test_a_place_is_known_by_its_mounts() -> None:
    """The same for each process that sees the same files."""
    assert place()
    assert place() == this_machine({}).place
    assert place(Path("/nonexistent")) == ""
