"""Running the proofs in processes of their own, as the engine's is: sealed before they import a kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from appliance.cast import forward
from appliance.cast.bystanders import CACHES, snapshot
from appliance.hardware.device import VISIBLE
from appliance.hardware.gpu import Gpu
from kernels.cast.words import Bystanders, ForwardProof, OpProof, Said

_TOLD = 2000  # characters of a process's last words
_KERNELS = "kernels.cast.prove"
_MODEL = "appliance.engine.proof"


def prove(folder: Path, gpu: Gpu | None) -> Iterator[OpProof | ForwardProof | list[str]]:
    """What was found of each op, then what else went wrong, as sentences. With `gpu` the kernels are launched on it,
    and a model is run: what was found of that and what went wrong follow."""
    yield from _run([_KERNELS, "--cast", str(folder), *(["--launch"] if gpu else [])], gpu)
    if gpu:
        ours, reference = forward.configs(folder, gpu)
        command = [_MODEL, "--cast", str(folder), "--config", forward.as_json(ours)]
        for found in _run([*command, "--reference", forward.as_json(reference)], gpu):
            yield found
            if isinstance(found, ForwardProof):
                yield forward.without_kernels(found, folder)


def _run(arguments: list[str], gpu: Gpu | None) -> Iterator[OpProof | ForwardProof | list[str]]:
    with tempfile.TemporaryDirectory(prefix="ingot-verify-") as caches, tempfile.TemporaryFile() as log:
        environment = os.environ | dict.fromkeys(CACHES, caches) | {VISIBLE: gpu.uuid if gpu else ""}
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments], env=environment, stdout=subprocess.PIPE, stderr=log
        )
        assert process.stdout is not None
        problems: list[str] | None = None
        for line in process.stdout:
            said = msgspec.json.decode(line, type=Said)
            if isinstance(said, Bystanders):
                problems = [f"{name} was compiled." for name in said.compiled]
                problems += [f"A program was started: {name}." for name in said.spawned]
                problems += [f"{name} was loaded: something was compiled." for name in said.compilers]
            else:
                yield said
        status = process.wait()
        if problems is None:
            log.seek(0)
            words = log.read().decode(errors="replace")[-_TOLD:].strip()
            problems = [f"The process {arguments[0]} ended with status {status}: {words}"]
        yield problems + [f"{path} was written: something was compiled." for path in snapshot(Path(caches))]
