"""Runs the proofs in processes of their own, sealed before they import a kernel, as the engine's process is."""

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
from kernels.cast.manifest import Manifest
from kernels.cast.words import Bystanders, ForwardProof, OpProof, Said

_TAIL = 2000  # characters of a process's last output
_KERNELS = "kernels.cast.prove"
_MODEL = "appliance.engine.proof"


def prove(folder: Path, manifest: Manifest, gpu: Gpu | None) -> Iterator[OpProof | ForwardProof | list[str]]:
    """The result for each op, then a list of other problems. With `gpu` the kernels are launched on it, and the result
    of running a model follows, with its problems."""
    yield from _run([_KERNELS, "--cast", str(folder), *(["--launch"] if gpu else [])], gpu)
    if gpu:
        ours, reference = forward.configs(manifest, gpu)
        command = [_MODEL, "--cast", str(folder), "--config", forward.as_json(ours)]
        for found in _run([*command, "--reference", forward.as_json(reference)], gpu):
            yield found
            if isinstance(found, ForwardProof):
                yield forward.without_kernels(found, manifest)


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
                problems += [f"The program {name} was started." for name in said.spawned]
                problems += [f"The compiler {name} was loaded, so something was compiled." for name in said.compilers]
            else:
                yield said
        status = process.wait()
        if problems is None:
            log.seek(0)
            words = log.read().decode(errors="replace")[-_TAIL:].strip()
            problems = [f"{arguments[0]} exited with status {status}: {words}"]
        yield problems + [f"{path} was written, so something was compiled." for path in snapshot(Path(caches))]
