"""A sealed process compiles nothing: not by torch, not by another library, not by a program, and not in a child."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernels.cast import mapped
from tests.cast.conftest import Workshop

REFUSED = (
    "torch.compile", "torch.compile as a decorator", "inductor", "cpp_extension", "jiterator", "stray Triton kernel",
    "gcc", "nvcc in a shell", "os.system",
)  # fmt: skip


@pytest.fixture(scope="module")
def found(workshop: Workshop, casts: dict[str, Path]) -> dict[str, Any]:
    done = workshop.run("tests.cast.sealed_compilers", str(casts["sm_90"]))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("way", REFUSED)
def test_what_would_compile_is_refused_as_not_cast(found: dict[str, Any], way: str):
    assert found["found"][way].get("not_cast"), found["found"][way]


@pytest.mark.parametrize(
    ("way", "named"),
    [("inductor", "torch._inductor.compile_fx"), ("stray Triton kernel", "well_kernel"), ("gcc", "gcc")],
)
def test_the_refusal_names_what_was_refused(found: dict[str, Any], way: str, named: str):
    assert named in found["found"][way]["message"]


def test_what_compiles_nothing_still_runs(found: dict[str, Any]):
    """Programs, and functions that torch's compiler was asked to optimise before and that run as they are."""
    assert found["found"]["a program that compiles nothing"] == {"returned": 0}
    assert found["found"]["torch._dynamo.optimize"] == {"returned": [2.0, 2.0]}


def test_a_child_process_compiles_nothing(found: dict[str, Any]):
    """It inherits the environment alone: torch.compile gives it the function as it is."""
    result, compiler_imported, *_ = found["found"]["child"]["returned"]
    assert (result, compiler_imported) == ("[2.0, 2.0]", "False")


def test_no_compiler_is_mapped(found: dict[str, Any]):
    assert found["compiled"] == []


@pytest.mark.parametrize("name", ["CUDA_FORCE_PTX_JIT", "CUDA_FORCE_JIT"])
def test_a_driver_that_is_told_to_compile_is_refused(workshop: Workshop, casts: dict[str, Path], name: str):
    done = workshop.run("tests.cast.sealed_compilers", str(casts["sm_90"]), **{name: "1"})
    assert done.returncode == 1
    assert f"{name}=1" in done.stderr


def maps(tmp_path: Path, *names: str) -> Path:
    """As the kernel lists a process's memory."""
    lines = [f"7f00{number:04x}000-7f00{number:04x}fff r-xp 00000000 08:01 {number}   /usr/lib/{name}\n"
             for number, name in enumerate(names)]  # fmt: skip
    (tmp_path / "maps").write_text("7ffc0000-7ffd0000 rw-p 00000000 00:00 0   [stack]\n" + "".join(lines))
    return tmp_path / "maps"


@pytest.mark.parametrize(
    ("before", "now", "compiled"),
    [
        ([], ["libtorch.so"], []),
        ([], ["libnvrtc.so.13"], []),
        (["libnvrtc.so.13"], ["libnvrtc.so.13", "libnvrtc-builtins.so.13.0"], ["libnvrtc-builtins.so.13.0"]),
        (["libnvrtc-builtins.so.13.0"], ["libnvrtc-builtins.so.13.0"], []),
        ([], ["libnvidia-ptxjitcompiler.so.580.1"], ["libnvidia-ptxjitcompiler.so.580.1"]),
        (["libnvidia-ptxjitcompiler.so.580.1"], ["libnvidia-ptxjitcompiler.so.580.1"], []),
    ],
)
def test_a_compiler_that_was_merely_linked_is_distinguished_from_one_that_compiled(
    tmp_path: Path, before, now, compiled
):
    """NVRTC loads its builtins when it compiles; the driver its compiler of PTX, when it meets PTX."""
    assert mapped.that_compiled(before, mapped.compilers(maps(tmp_path, *now))) == compiled
