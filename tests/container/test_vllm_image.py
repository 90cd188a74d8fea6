"""The engine for a GPU with vLLM in it: what compiles in it, or that nothing does, and how large it is; without a GPU.

`make test-vllm-image` asks for it: the image takes half an hour on two processors. INGOT_VLLM_IMAGE and
INGOT_SEALED_VLLM_IMAGE name images that are there already.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from appliance.caches.collect import make_pack
from appliance.vllm.cache_packs.facts import Facts
from kernels.vllm_modules import MODULES
from tests.container.deployment import run
from tests.container.test_images import COMPILERS, FOUND, GB, inside, inspected

ARCH = "sm_90"
BUILD_S = 5400
pytestmark = pytest.mark.timeout(BUILD_S + 600)
PYTHON = "/opt/vllm/bin/python"
USUAL = {module.name for module in MODULES if module.usual}
TOOLS = ("nvcc", "ptxas", "ptxas-*", "cicc", "nvlink", "fatbinary", "ninja", "cc1", "cc1plus", "tileiras")
# What vLLM looks for before it uses FlashInfer.
REFUSES = "/opt/vllm/lib/python3.11/site-packages/nvidia/cu13/bin/{}"
KERNEL = 'extern "C" __global__ void f(float *x) { x[threadIdx.x] += 1; }\nextern "C" int g() { return cudaSuccess; }\n'
# What vLLM decides by, in a process that sees no GPU.
ASKED = """
import json, pathlib
import flashinfer
from vllm.utils.flashinfer import has_flashinfer
ahead = pathlib.Path(flashinfer.__file__).parent / "data/aot"
print(json.dumps({"flashinfer": has_flashinfer(), "ahead": sorted(library.stem for library in ahead.glob("*/*.so"))}))
"""


def built(docker: None, compilers: int, named: str) -> str:
    if os.environ.get("INGOT_VLLM_IMAGE_TESTS") != "1":
        pytest.skip("builds an engine of 14 GB: `make test-vllm-image` runs it")
    if image := os.environ.get(named):
        return image
    tag = f"ingot-engine:test-vllm-{ARCH}-{compilers}"
    arguments = ("VARIANT=cuda", f"ARCH={ARCH}", "CAST=triton", "WITH_VLLM=1", f"VLLM_COMPILERS={compilers}")
    command = ["docker", "build", "--target=engine", f"--tag={tag}", *(f"--build-arg={one}" for one in arguments), "."]
    run(command, os.environ, timeout_s=BUILD_S)
    return tag


@pytest.fixture(scope="module")
def compiling(docker: None) -> str:
    return built(docker, 1, "INGOT_VLLM_IMAGE")


@pytest.fixture(scope="module")
def sealed(docker: None) -> str:
    return built(docker, 0, "INGOT_SEALED_VLLM_IMAGE")


def asked(image: str) -> dict:
    return json.loads(inside(image, PYTHON, "-c", ASKED).splitlines()[-1])


def test_what_vllm_may_compile_with_is_there_and_works(compiling: str) -> None:
    """As the engine's user, on a read-only root, with the environment that the image gives."""
    labels = inspected(compiling)["Config"]["Labels"]
    assert (labels["ingot.vllm"], labels["ingot.vllm-compilers"]) == ("1", "1")
    found = inside(compiling, "bash", "-c", FOUND.format("g++ gcc nvcc ninja")).split()
    assert len(found) == 4
    script = (
        f"set -e; cd /tmp; cat > k.cu <<'CU'\n{KERNEL}CU\n"
        "ninja --version; test -f /usr/include/python3.11/Python.h; test -f $CUDA_HOME/include/cuda_fp8.h\n"
        "nvcc -arch=sm_90a -shared -Xcompiler -fPIC -o k.so k.cu -L$CUDA_HOME/lib64 -lcudart; test -s k.so\n"
        "test -w $INGOT_HOME/caches; echo compiled"
    )
    assert inside(compiling, "bash", "-c", script).split()[-1] == "compiled"


def test_flashinfer_is_used_and_has_its_usual_modules(compiling: str) -> None:
    """Without nvcc and ninja in sight vLLM would not take it, or die of its sampler."""
    found = asked(compiling)
    assert found["flashinfer"] is True
    assert set(found["ahead"]) >= USUAL


def test_the_native_engine_beside_it_is_sealed_all_the_same(compiling: str) -> None:
    assert f"COMPLETE: /opt/ingot/cast ({ARCH})" in inside(compiling, "ingot", "verify")


def test_an_image_may_bring_a_pack(compiling: str, tmp_path: Path) -> None:
    """As docs/containers.md says; the labels and the inventory stay, so that a bundle takes it."""
    (tmp_path / "caches/triton/AB").mkdir(parents=True)
    (tmp_path / "caches/triton/AB/kernel.cubin").write_bytes(b"cubin")
    facts = Facts(model="sha256:1", folder="/models/one", installed="/opt/vllm", versions={}, processor="H100")
    make_pack(tmp_path / "caches", tmp_path / "chat-h100", profile="chat", cold_s=90, facts=facts)
    (tmp_path / "Dockerfile").write_text(f"FROM {compiling}\nCOPY chat-h100 /opt/ingot/cache-packs/chat-h100\n")
    image = "ingot-engine:test-vllm-pack"
    run(["docker", "build", f"--tag={image}", str(tmp_path)], os.environ, timeout_s=600)
    try:
        [pack] = json.loads(inside(image, "ingot", "cache", "list", "--json"))["packs"]
        assert (pack["path"], pack["files"]) == ("/opt/ingot/cache-packs/chat-h100", 1)
        assert inspected(image)["Config"]["Labels"] == inspected(compiling)["Config"]["Labels"]
    finally:
        run(["docker", "rmi", image], os.environ)


def test_nothing_in_the_sealed_image_compiles(compiling: str, sealed: str) -> None:
    assert inspected(sealed)["Config"]["Labels"]["ingot.vllm-compilers"] == "0"
    others = [name for name in COMPILERS if name not in ("nvcc", "ninja")]
    assert inside(sealed, "bash", "-c", FOUND.format(" ".join(others))) == ""
    named = " -o ".join(f"-name '{name}'" for name in TOOLS)
    found = inside(sealed, "bash", "-c", rf"find / -xdev -type f \( {named} \) 2>/dev/null; true").split()
    assert set(found) == {REFUSES.format("nvcc"), REFUSES.format("ninja")}
    for path in found:
        assert "compiles nothing" in inside(sealed, "sh", "-c", f"{path} --version 2>&1; test $? = 1")
    assert asked(sealed) == asked(compiling)  # or it would choose otherwise than where its pack was made


def test_they_are_as_large_as_documented(compiling: str, sealed: str) -> None:
    assert inspected(compiling)["Size"] < 14.5 * GB
    assert inspected(sealed)["Size"] < 14 * GB
