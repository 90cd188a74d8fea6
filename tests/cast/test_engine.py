"""The engine's process and its cast: sealed before a kernel is imported, and what goes wrong reaches the diagnosis."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from appliance.core_protocol import Fatal, FinishReason, Loaded, Outputs
from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.log_text import number_lines
from tests.cast.conftest import Workshop
from tests.engine.test_core import CORE, FrontDoor, config, is_a, submit
from tests.tiny import write_checkpoint

LENGTH = FinishReason.LENGTH


@contextmanager
def core(workshop: Workshop, cast: Path, model: Path) -> Iterator[tuple[FrontDoor, subprocess.Popen[bytes]]]:
    """Told to seal itself to `cast`, and to run on the CPU, which launches nothing of it."""
    door = FrontDoor()
    process = subprocess.Popen([*CORE, str(door.folder)], env=workshop.environ(), stderr=subprocess.PIPE)
    door.send(msgspec.structs.replace(config(model), cast=str(cast)))
    yield door, process
    process.kill()
    process.wait()
    door.close()


def test_a_sealed_core_generates(workshop: Workshop, casts: dict[str, Path], tmp_path: Path):
    with core(workshop, casts["sm_90"], write_checkpoint(tmp_path / "model")) as (door, process):
        door.until(is_a(Loaded))
        door.send(submit("a", max_tokens=2))
        door.until(lambda message: isinstance(message, Outputs) and message.outputs[0].finish_reason is LENGTH)
        process.kill()
        log = process.stderr.read().decode()
    assert f"kernels of {casts['sm_90']} for sm_90" in log.splitlines()[0]


def test_a_core_with_a_damaged_cast_says_why(workshop: Workshop, casts: dict[str, Path], tmp_path: Path):
    """Preflight has seen it whole; in between it was changed. The diagnosis is the cast's own words."""
    cast = Path(shutil.copytree(casts["sm_90"], tmp_path / "cast"))
    (cast / "manifest.json").write_text("{}")
    with core(workshop, cast, tmp_path) as (door, _):
        fatal = next(message for message in _all(door) if isinstance(message, Fatal))
    found = diagnose(number_lines(fatal.traceback), exit_status=1, fatal=fatal)
    assert found.cause == "cast-unusable"
    assert f"{cast}/manifest.json " in found.summary
    assert found.fix.look == "ingot verify"


def _all(door: FrontDoor) -> list[object]:
    seen: list[object] = []

    def ends(message: object) -> bool:
        seen.append(message)
        return isinstance(message, Fatal)

    door.until(ends)
    return seen


def test_what_is_not_cast_is_diagnosed_with_the_command(workshop: Workshop, casts: dict[str, Path]):
    """And arguments no cast could cover are reported as such."""
    caught = workshop.sealed(casts["sm_90"], "other-model", "misaligned")["caught"]
    logs = {name: f'Traceback (most recent call last):\n  File "a.py", line 1, in f\nkernels.seal.NotCast: {text}\n'
            for name, text in caught.items()}  # fmt: skip
    lacking = diagnose(number_lines(logs["other-model"]), exit_status=1)
    assert (lacking.family, lacking.cause) == ("arch", "kernel-not-cast")
    assert "rms_norm_kernel" in lacking.summary
    assert lacking.fix.command == f"ingot cast --arch sm_90 --out {casts['sm_90']}"
    odd = diagnose(number_lines(logs["misaligned"]), exit_status=1)
    assert odd.cause == "kernel-arguments-not-cast"
    assert "misaligned pointer" in odd.summary
