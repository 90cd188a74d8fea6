"""Starts of a real vLLM on this GPU that cannot go well, or that somebody ends: what Ingot says of each beside what
happened. All of a part start at once; INGOT_VLLM names vLLM's command. The other parts are starts of models with other
caches (`models`), and of one model on two GPUs (`ranks`).

Usage: python -m tests.gpu.vllm_failures [PART] [--only NAME ...] [--seconds 90] [--keep DIR] [--device cpu]

Each row that comes out otherwise than it says is a failure; the engines' logs are kept in DIR/failures.tar.gz.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from appliance.profile.document import apply_patch
from tests.bench import shapes
from tests.running import exit_on_term, temporary_home
from tests.vllm.real import Engine, family, front_door

SHAPES: Final = {
    "dense": shapes.SHAPES["llama-27m"],
    "long": shapes.Shape("llama", shapes.SHAPES["llama-27m"].config | {"max_position_embeddings": 8_388_608}),
    "fp8": shapes.SHAPES["qwen3-30b-a3b-fp8"].with_layers(1),
    "moe": shapes.SHAPES["qwen3-30b-a3b"].with_layers(1),
    "next": shapes.SHAPES["qwen3-next"].with_layers(4),
    "v3": shapes.SHAPES["deepseek-v3"].with_layers(2),
    "v3.2": shapes.Shape("deepseek_v32", shapes.SHAPES["deepseek-v3"].config | {
        "index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048,
    }).with_layers(2),
}  # fmt: skip
# Little of everything, so that all of them fit on one GPU at once.
PROFILE: Final[dict[str, Any]] = {
    "schema": 1, "name": "real", "engine": "vllm", "max-model-len": 512, "max-num-seqs": 8, "enforce-eager": True,
    "gpu-memory-utilization": 0.1, "kv-cache-memory-bytes": "256 MiB",
}  # fmt: skip
HELD_GIB: Final = 24  # of the GPU, by a process that is not Ingot's

Act = Callable[[Engine], None]


@dataclass(frozen=True)
class Case:
    """`changes` are of the profile, by dotted keys; `arguments` and `environment` are given to vLLM behind Ingot's
    back, so that what preflight would have refused happens. `states` is how it may end, and `families` what a diagnosis
    may name: several where several are right. `act` is done while it starts or serves. `says` is in Ingot's words, and
    `finding` in the id of one of preflight's."""

    name: str
    states: tuple[str, ...]
    families: tuple[str, ...] = ()
    says: str = ""
    model: str = "dense"
    changes: dict[str, Any] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    act: Act | None = None
    finding: str = ""


def process_of(engine: Engine, title: str) -> int:
    """Of the front door's, the one with that title: `EngineCore` computes on one GPU, `Worker_TP1` on the second."""
    for process in family(engine.process.pid):
        with contextlib.suppress(Exception):
            if title in process.name() or title in " ".join(process.cmdline()):
                return int(process.pid)
    raise LookupError(f"there is no {title} among the front door's processes")


def while_it_serves(title: str, number: signal.Signals) -> Act:
    def act(engine: Engine) -> None:
        engine.wait("ready", "failed", "hung")
        os.kill(process_of(engine, title), number)

    return act


def kill_during(phase: str, title: str = "EngineCore") -> Act:
    def act(engine: Engine) -> None:
        while (now := engine.state()).get("state") in (None, "preflight", "starting"):
            if any(one["phase"] == phase for one in (now.get("launch") or {}).get("phases", ())):
                os.kill(process_of(engine, title), signal.SIGKILL)
                return
            time.sleep(0.02)

    return act


def gpu() -> str:
    asked = ("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader")
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()[0]


DEEP_GEMM: Final = {"VLLM_USE_DEEP_GEMM": "1", "VLLM_MOE_USE_DEEP_GEMM": "1", "VLLM_DEEP_GEMM_WARMUP": "relax"}
CASES: Final = (
    Case("nothing wrong", ("ready",)),
    Case("a GPU by its UUID", ("ready",), changes={"device": "{gpu}"}),
    Case("a GPU that is not here", ("failed",), changes={"device": "GPU-00000000-dead-beef-0000-000000000000"},
         finding="device"),
    Case("DeepGEMM absent, bf16", ("ready", "failed"), ("backend", "jit-toolchain"), environment=DEEP_GEMM),
    Case("DeepGEMM absent, FP8", ("ready", "failed"), ("backend", "jit-toolchain"), model="fp8", environment=DEEP_GEMM),
    Case("DeepGEMM absent, FP8, as Ingot starts it", ("ready",), model="fp8"),
    Case("DeepGEMM for experts, absent", ("failed",), ("backend", "jit-toolchain"), model="fp8",
         arguments=("--moe-backend=deep_gemm",)),
    Case("FlashInfer for experts, absent", ("failed",), ("backend", "jit-toolchain"), model="moe",
         arguments=("--moe-backend=flashinfer_cutlass",)),
    Case("more memory than is free", ("failed",), ("memory",), arguments=("--gpu-memory-utilization=0.95",)),
    Case("a cache larger than what is free", ("failed",), ("memory",), arguments=("--kv-cache-memory-bytes=75G",)),
    Case("no memory left for the cache", ("failed",), ("memory",), changes={"kv-cache-memory-bytes": None},
         arguments=("--gpu-memory-utilization=0.004",)),
    Case("a request longer than the cache", ("failed",), ("memory",), model="long",
         arguments=("--max-model-len=8388608",)),
    Case("stopped while it serves", ("hung",), says="stopped", act=while_it_serves("EngineCore", signal.SIGSTOP)),
    Case("killed while it serves", ("failed",), says="SIGKILL", act=while_it_serves("EngineCore", signal.SIGKILL)),
    Case("killed while it captures graphs", ("failed",), says="SIGKILL", changes={"enforce-eager": False},
         act=kill_during("graphs")),
    Case("compiling forbidden, no pack", ("failed",), ("compile",), changes={"jit": "forbid"}),
)  # fmt: skip
MORE_MEMORY: Final = {"gpu-memory-utilization": 0.25}
MODELS: Final = (
    Case("Qwen3-Next's shape", ("ready",), model="next", changes=MORE_MEMORY),
    Case("DeepSeek-V3's shape", ("ready",), model="v3", changes=MORE_MEMORY),
    # Without DeepGEMM preflight refuses it.
    Case(
        "DeepSeek-V3.2's shape",
        ("ready", "failed"),
        model="v3.2",
        changes=MORE_MEMORY,
        finding="indexer-without-deepgemm",
    ),
)
TWO: Final = {"tensor-parallel-size": 2}
RANKS: Final = (
    Case("two GPUs", ("ready",), changes=TWO),
    Case("two GPUs, with graphs", ("ready",), changes=TWO | {"enforce-eager": False}),
    Case("a worker killed while it serves", ("failed",), says="SIGKILL", changes=TWO,
         act=while_it_serves("Worker_TP1", signal.SIGKILL)),
    Case("a worker stopped while it serves", ("hung",), says="stopped", changes=TWO,
         act=while_it_serves("Worker_TP1", signal.SIGSTOP)),
    Case("a worker killed while it loads", ("failed",), says="SIGKILL", changes=TWO,
         act=kill_during("weights", "Worker_TP1")),
)  # fmt: skip
PARTS: Final = {"failures": CASES, "models": MODELS, "ranks": RANKS}


@dataclass
class Came:
    """How a case came out: Ingot's own words, and the log's last error."""

    case: Case
    state: str = ""
    seconds: float = 0.0
    words: str = ""
    family: str | None = None
    cause: str | None = None
    findings: tuple[str, ...] = ()
    happened: str = ""
    log: str = ""
    error: str = ""

    @property
    def wrong(self) -> str:
        case = self.case
        if self.error:
            return self.error
        if self.state not in case.states:
            return f"it is {self.state}, not {' or '.join(case.states)}"
        if case.finding and self.state == "failed":
            return "" if any(case.finding in one for one in self.findings) else f"found {self.findings}"
        if self.state == "failed" and case.families and self.family not in case.families:
            return f"the diagnosis is of {self.family}, not {' or '.join(case.families)}"
        return "" if case.says.lower() in self.words.lower() else f"its words do not say {case.says}"


def provoke(case: Case, folder: Path, device: dict[str, Any], until: float) -> Came:
    came = Came(case)
    began = time.monotonic()
    changes = {key: gpu() if value == "{gpu}" else value for key, value in case.changes.items()}
    profile = apply_patch(PROFILE | {"model": {"path": case.model}} | device, changes)
    try:
        with front_door(folder, profile, str(wrapper(case)), INGOT_MODELS=str(folder.parent / "models")) as engine:
            if case.act is not None:
                case.act(engine)
            good = ("ready",) if case.act is None and "ready" in case.states else ()
            state = engine.wait("failed", "hung", *good, timeout_s=max(1.0, until - time.monotonic()))
            came.seconds, came.log = time.monotonic() - began, engine.log()
            _read(came, state)
    except Exception as error:  # noqa: BLE001  # of one case, whatever it is, and the others go on
        came.error = f"{type(error).__name__}: {error}"[:300]
        logs = sorted((folder / "home" / "launches").glob("*/engine.log"))
        came.log = logs[-1].read_text(errors="replace") if logs else ""
    return came


def _read(came: Came, state: dict[str, Any]) -> None:
    launch = state.get("launch") or {}
    diagnosis = launch.get("diagnosis") or {}
    came.state = state["state"]
    came.family, came.cause = diagnosis.get("family"), diagnosis.get("cause")
    fix = (diagnosis.get("fix") or {}).get("text", "")
    ends = [f"{end['name']} ended with {end.get('status')}" for end in launch.get("process_ends", ())]
    words = (launch.get("reason", ""), diagnosis.get("summary", ""), fix, *ends)
    came.words = " | ".join(word for word in words if word)
    came.findings = tuple(one["id"] for one in launch.get("findings", ()) if one["severity"] != "info")
    errors = [line for line in came.log.splitlines() if "Error" in line and "Traceback" not in line]
    came.happened = errors[-1][-220:] if errors else ""


def wrapper(case: Case) -> Path:
    """vLLM's command with what the case gives it, beside the real one, so that preflight reads the same packages."""
    real = Path(os.environ["INGOT_VLLM"])
    if not (case.arguments or case.environment):
        return real
    path = real.with_name("vllm-" + "".join(letter if letter.isalnum() else "-" for letter in case.name))
    said = " ".join(f"{name}={value}" for name, value in case.environment.items())
    path.write_text(f'#!/bin/sh\nexec env {said} {real} "$@" {" ".join(case.arguments)}\n')
    path.chmod(0o755)
    return path


@contextlib.contextmanager
def held_memory() -> Iterator[None]:
    """Another process has some of the GPU."""
    code = f"import torch; held = torch.empty({HELD_GIB} << 30, dtype=torch.uint8, device='cuda'); print(1, flush=True)"
    code += "; input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", choices=PARTS, default="failures")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="cases of these names")
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    exit_on_term()
    cases = PARTS[options.part]
    if unknown := set(options.only or ()) - {case.name for case in cases}:
        parser.error(f"no case of {options.part} is named {' or '.join(sorted(unknown))}")
    chosen = [case for case in cases if not options.only or case.name in options.only]
    until = time.monotonic() + options.seconds
    device = {"device": "cpu", "gpu-memory-utilization": 0.9} if options.device == "cpu" else {}
    held = held_memory() if options.device == "cuda" and options.part == "failures" else contextlib.nullcontext()
    with temporary_home() as folder, held:
        for name in {case.model for case in chosen}:
            shapes.write(folder / "models" / name, SHAPES[name])
        with ThreadPoolExecutor(len(chosen)) as pool:
            rows = enumerate(chosen)
            found = list(pool.map(lambda row: provoke(row[1], folder / str(row[0]), device, until), rows))
        if options.keep is not None:
            keep(found, options.keep)
    for came in found:
        tell(came)
    return 1 if any(came.wrong for came in found) else 0


def tell(came: Came) -> None:
    print(f"{'WRONG' if came.wrong else 'right'}  {came.case.name}: {came.state} after {came.seconds:.0f} s")
    cause = f"{came.family}/{came.cause}" if came.family else ""
    said = {"Ingot": came.words, "cause": cause, "found": ", ".join(came.findings), "vLLM": came.happened,
            "wrong": came.wrong}  # fmt: skip
    for what, text in said.items():
        if text:
            print(f"       {what}: {' '.join(text.split())[:420]}")


def keep(found: list[Came], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    for came in found:
        (logs / f"{came.case.name}.log").write_text(came.log)
    with tarfile.open(folder / "failures.tar.gz", "w:gz") as archive:
        for path in sorted(logs.iterdir()):
            archive.add(path, path.name)
            path.unlink()
    logs.rmdir()
    told = [{"case": came.case.name, "state": came.state, "words": came.words, "wrong": came.wrong} for came in found]
    (folder / "failures.json").write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    sys.exit(main())
