"""Processors with and without what oneDNN asks of them: which backend linear gets, and that the engine computes on both
kinds in every format. The other kind is this processor with ONEDNN_MAX_CPU_ISA, which oneDNN reads once, and with the
kernels in C++ that such a one would run."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance.hardware.host import read_host
from appliance.hardware.processor import FEATURES, read_processor
from kernels.catalogue import LINEAR, OPS
from kernels.cpu.library import PRODUCTS
from kernels.selection import Context, choose
from tests.tiny import write_checkpoint

LIMIT = "ONEDNN_MAX_CPU_ISA"
# The flags that matter here of each processor's list in /proc/cpuinfo.
RECORDED = {
    "AMD EPYC 7763": ("flags", "fpu sse4_2 fma f16c avx avx2 bmi2 sha_ni vaes", "torch"),
    "Intel Core i9-12900K": ("flags", "fpu fma f16c avx avx2 avx_vnni vaes gfni", "torch"),
    "Intel Xeon Phi 7250": ("flags", "fpu fma f16c avx avx2 avx512f avx512cd avx512er avx512pf", "torch"),
    "Intel Xeon Gold 6148": ("flags", "fpu fma avx2 avx512f avx512dq avx512cd avx512bw avx512vl", "onednn"),
    "AMD EPYC 9354": ("flags", "fpu fma avx2 avx512f avx512dq avx512bw avx512vl avx512_bf16", "onednn"),
    "Intel Xeon 6780E": ("flags", "fpu fma avx2 avx_vnni avx_vnni_int8 avx_ne_convert", "onednn"),
    "ARM Neoverse V2": ("Features", "fp asimd fphp asimdhp sve sve2 i8mm bf16", "onednn"),
    "ARM Neoverse N1": ("Features", "fp asimd fphp asimdhp asimddp", "torch"),
}
GENERATE = """
import json, sys
from pathlib import Path
from kernels.cpu import library
from kernels.linear import onednn
from tests.parity.conftest import distribution, make_engine, prompts
import torch
if sys.argv[3] == "AVX2":
    library.runnable = lambda: ["avx2"]
engine = make_engine(Path(sys.argv[1]), dtype=sys.argv[2], kv_cache_dtype=sys.argv[2])
found = distribution(engine, prompts(3, (9,))["r0"])
print(json.dumps({"supports": onednn.supports(getattr(torch, sys.argv[2])), "logprobs": found.tolist()}))
"""


def context(tmp_path: Path, key: str, flags: str, dtype: str) -> Context:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\n{key}\t\t: {flags}\n\nprocessor\t: 1\n{key}\t\t: {flags}\n")
    return Context("cpu", dtype=dtype, cpu_features=read_host(cpuinfo=cpuinfo).cpu_features)


@pytest.mark.parametrize("name", RECORDED)
def test_linear_gets_what_the_processor_can(tmp_path: Path, name: str) -> None:
    key, flags, expected = RECORDED[name]
    for dtype, backend in (("float32", "onednn"), ("bfloat16", expected), ("float16", "torch")):
        choice = choose(LINEAR, context(tmp_path, key, flags, dtype))
        assert choice.backend.name == backend, dtype
        refused = {verdict.backend for verdict in choice.verdicts if verdict.reason}
        # The first is a GPU's, the second not compiled.
        assert refused == {"triton", "cpp"} | ({"onednn"} if backend == "torch" else set())


@pytest.mark.parametrize("name", RECORDED)
def test_kernels_that_are_compiled_multiply_where_pairs_can_be(tmp_path: Path, name: str) -> None:
    key, flags, _ = RECORDED[name]
    compiled = replace(context(tmp_path, key, flags, "bfloat16"), libraries={PRODUCTS: "avx512-bf16"})
    assert (choose(LINEAR, compiled).backend.name == "cpp") == (name == "AMD EPYC 9354")
    assert choose(LINEAR, replace(compiled, dtype="float32")).backend.name == "onednn"


def test_a_processor_of_which_nothing_is_known_is_refused_nothing() -> None:
    assert choose(LINEAR, Context("cpu", dtype="bfloat16", cpu_features=None)).backend.name == "onednn"


def test_every_flag_that_a_backend_asks_for_is_read() -> None:
    asked = {
        flag
        for op in OPS
        for backend in op.backends
        for accepted in backend.cpu_features.values()
        for flags in accepted
        for flag in flags
    }
    assert asked == FEATURES


def run(folder: Path, dtype: str, isa: str | None) -> dict[str, Any]:
    environ = {name: value for name, value in os.environ.items() if name != LIMIT} | ({LIMIT: isa} if isa else {})
    done = subprocess.run(
        [sys.executable, "-c", GENERATE, folder, dtype, isa or ""],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.skipif(platform.machine() != "x86_64", reason=f"{LIMIT} is for x86 alone")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_engine_computes_in_either_half_on_either_kind_of_processor(tmp_path: Path, dtype: str) -> None:
    """In the format that oneDNN would refuse, a model answers what it answers where oneDNN takes it."""
    folder = write_checkpoint(tmp_path / "model", "qwen3", dtype=dtype, seed=4)
    whole, limited = run(folder, dtype, None), run(folder, dtype, "AVX2")
    assert not limited["supports"]
    if choose(LINEAR, Context("cpu", dtype=dtype, cpu_features=read_processor().features)).backend.name == "onednn":
        assert whole["supports"]
    differences = [abs(one - other) for one, other in zip(whole["logprobs"], limited["logprobs"], strict=True)]
    assert max(differences) < 0.1
