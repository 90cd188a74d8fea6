"""On a GPU, sealed: torch's compilers, NVRTC and the driver's compiler of PTX are refused, or noticed.

INGOT_GPU_CAST names the cast of this GPU's architecture.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from appliance import hardware
from appliance.cast import forward
from kernels.cast import check
from tests.cast.test_compilers import REFUSED

CAST = os.environ.get("INGOT_GPU_CAST")
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.skipif(CAST is None, reason="needs a cast, named in INGOT_GPU_CAST"),
]
JIT_COMPILATION_DISABLED = 223
KERNELS, MODEL = "kernels.cast.prove", "appliance.engine.proof"


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    cache = tmp_path_factory.mktemp("torch-kernels")
    environ["PYTORCH_KERNEL_CACHE_PATH"] = str(cache)
    done = subprocess.run(
        [sys.executable, "-m", "tests.cast.sealed_compilers", str(CAST), "cuda:0"],
        env=environ, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    print(done.stdout, done.stderr, file=sys.stderr)
    assert done.returncode == 0
    return json.loads(done.stdout.splitlines()[-1]) | {"cached": [path.name for path in cache.rglob("*")]}


@pytest.mark.parametrize("way", REFUSED)
def test_what_would_compile_is_refused_as_not_cast(tried: dict[str, Any], way: str) -> None:
    assert tried["found"][way].get("not_cast"), tried["found"][way]


def test_a_child_process_compiles_nothing(tried: dict[str, Any]) -> None:
    assert tried["found"]["child"]["returned"][:2] == ["[2.0, 2.0]", "False"]


def test_the_driver_does_not_compile_ptx(tried: dict[str, Any]) -> None:
    assert tried["found"]["PTX"]["returned"] == JIT_COMPILATION_DISABLED


def test_native_code_that_calls_nvrtc_is_noticed(tried: dict[str, Any]) -> None:
    """`ingot verify` would fail: NVRTC's builtins are newly mapped, or torch has written the kernel to its cache."""
    assert tried["found"]["NVRTC"]["returned"] == [1.0, 1.0]
    assert tried["cached"] or any(name.startswith("libnvrtc-builtins") for name in tried["compiled"]), tried


def test_the_proof_says_which_compilers_are_mapped() -> None:
    """Those that are merely linked, and none that compiled: printed, so that a change of torch or the driver shows."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    gpu = hardware.inventory().gpus[0]
    ours, reference = map(forward.as_json, forward.configs(check.read(Path(str(CAST))), gpu))
    for program, *options in ((KERNELS, "--launch"), (MODEL, "--config", ours, "--reference", reference)):
        command = [sys.executable, "-m", program, "--cast", str(CAST), *options]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=True)
        said = json.loads(done.stdout.splitlines()[-1])
        print(program, said, file=sys.stderr)
        assert said["type"] == "bystanders"
        assert not {"compiled", "spawned", "compilers"} & said.keys(), said
