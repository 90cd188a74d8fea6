"""FlashInfer's real modules by the real nvcc, both from the index: built without a GPU, loaded sealed by a process that
has no compiler. Minutes: `make test-flashinfer`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.cast import flashinfer, nvcc
from kernels.cast.architectures import architecture_named
from kernels.cast.host_compiler import find
from kernels.paged_attention.modules import Shape, decoding, prefilling

pytestmark = [
    pytest.mark.skipif(not os.environ.get("INGOT_FLASHINFER_TESTS"), reason="make test-flashinfer"),
    pytest.mark.timeout(1800),
]

ROOT = Path(__file__).parents[2]
LIBRARY = ("flashinfer-python", "apache-tvm-ffi", "einops", "ninja", "tabulate")
COMPILER = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-cccl", "nvidia-cuda-runtime")
SHAPE = Shape("bfloat16", "bfloat16", 128)
DECODE = decoding(SHAPE, group=1)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Everything that a cast of FlashInfer needs, beside the venv of the tests."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    subprocess.run([*command, "--constraint", str(ROOT / "constraints.txt"), *LIBRARY, *COMPILER], check=True)
    return folder


@pytest.fixture
def _installed(site, monkeypatch):
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), str(site))))
    monkeypatch.setenv("PATH", os.pathsep.join((str(site / "bin"), os.environ["PATH"])))
    monkeypatch.setenv("CUDA_HOME", str(site / "nvidia" / "cu13"))


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize("arch", ["sm_90", "sm_120"])
def test_a_module_is_built_alike_twice_and_loads_where_there_is_no_compiler(tmp_path, site, arch):
    architecture = architecture_named(arch)
    libraries = []
    for name in ("first", "second"):
        flashinfer.build(tmp_path / name, architecture, [DECODE], os.cpu_count() or 1, lambda _: None)
        libraries.append((tmp_path / name / "flashinfer" / DECODE.name / f"{DECODE.name}.so").read_bytes())
    assert libraries[0] == libraries[1]

    # The driver's library, which the module asks for, is on machines with a GPU alone: an empty one stands in.
    driver = nvcc.link_folder(nvcc.find(architecture), find(), tmp_path / "driver")
    (driver / "libcuda.so").rename(driver / "libcuda.so.1")
    (driver / "libcudart.so.13").symlink_to((driver / "libcudart.so").resolve())
    other = prefilling(SHAPE, architecture.number)
    program = f"""
import sys
import torch
spawned = []
sys.addaudithook(lambda event, _: spawned.append(event) if event in ("subprocess.Popen", "os.posix_spawn") else None)
from pathlib import Path
from kernels import flashinfer
from kernels.cast.architectures import architecture_named
from kernels.seal import NotCast
flashinfer.seal(Path({str(tmp_path / "first")!r}), architecture_named({arch!r}))
library = flashinfer.library()
shape = (torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.int32, 128, 128, 0, False, False)
with flashinfer.loading("paged_attention"):
    library.decode.get_batch_decode_module(*shape)
try:
    with flashinfer.loading("paged_attention"):
        library.prefill.get_batch_prefill_module({dict(other.arguments)["backend"]!r}, *shape, False)
except NotCast as error:
    assert {other.name!r} in str(error), error
    print("refused", spawned)
"""
    environ = {"PATH": "/nonexistent", "HOME": "/nonexistent", "LD_LIBRARY_PATH": str(driver)}
    environ["PYTHONPATH"] = os.environ["PYTHONPATH"]
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False)
    assert done.stdout == "refused []\n", done.stderr
