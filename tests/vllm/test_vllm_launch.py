"""A launch of vLLM from start to end, over a stand-in that prints and answers as vLLM does: what comes right, what goes
wrong, and that nothing of it is left."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from appliance.cli import main
from appliance.engine_process.probe import PROBE_AFTER_S
from appliance.vllm.cache_packs.pack import read_pack
from tests.running import fetch, wait_for
from tests.vllm.full_disk import no_file_over
from tests.vllm.real import PROFILE, Engine, family, front_door
from tests.vllm.stand_in import install

KERNEL = b"cubin" * 50_000
TOO_LARGE = (
    "To serve at least one request with the models's max seq len (4096), (64.00 GiB KV cache is needed, which is "
    "larger than the available KV cache memory (1.00 GiB). Based on the available memory, the estimated maximum model "
    "length is 64. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
)
OUT_OF_MEMORY = [
    "(EngineCore pid=2) ERROR 11-20 16:21:05 [core.py:1093] EngineCore failed to start.",
    "(EngineCore pid=2) ERROR 11-20 16:21:05 [core.py:1093] Traceback (most recent call last):",
    '(EngineCore pid=2) ERROR 11-20 16:21:05 [core.py:1093]   File "/x/vllm/v1/engine/core.py", line 10, in run',
    f"(EngineCore pid=2) ERROR 11-20 16:21:05 [core.py:1093] ValueError: {TOO_LARGE}",
    "(APIServer pid=1) Traceback (most recent call last):",
    '(APIServer pid=1)   File "/x/vllm/entrypoints/cli/main.py", line 73, in main',
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("stand-in"))


@contextlib.contextmanager
def started(tmp_path: Path, program: Path, profile: dict[str, Any] | None = None, **behaviour: Any) -> Iterator[Engine]:
    variables = {"FAKE_VLLM": json.dumps(behaviour)}
    with front_door(tmp_path, PROFILE | (profile or {}), str(program), **variables) as engine:
        yield engine


def server_of(engine: Engine) -> psutil.Process:
    """vLLM's own first process, below the guard."""
    started = [process for process in family(engine.process.pid) if "--max-num-seqs=256" in process.cmdline()]
    return next(process for process in started if "appliance.engine_process.guard" not in process.cmdline())


def phases(state: dict[str, Any]) -> dict[str, str]:
    return {phase["phase"]: phase.get("outcome", "") for phase in state["launch"]["phases"]}


def test_a_good_start_goes_through_the_phases_and_leaves_nothing(tmp_path: Path, program: Path) -> None:
    """The first line of the log is the command; the length of the context is what vLLM itself says."""
    with started(tmp_path, program, leaves=True) as engine:
        state = engine.wait("ready", timeout_s=30)
        assert list(phases(state)) == [
            "preflight", "engine start", "weights", "compile", "cache", "self-test", "ready",
        ]  # fmt: skip
        assert set(phases(state).values()) == {"done"}
        weights = next(phase for phase in state["launch"]["phases"] if phase["phase"] == "weights")
        assert weights["progress"] == {"done": 2, "total": 2, "unit": "shards"}
        assert (state["max_model_len"], state["models"]) == (480, ["real"])
        first = engine.log().splitlines()[0]
        assert first.startswith("ingot: starting ")
        assert f"{program} serve " in first
        assert "--uds=" in first
        everything = family(engine.process.pid)
        assert any("left-by-vllm" in process.cmdline() for process in everything)
        engine.stop()
        _, alive = psutil.wait_procs(everything, timeout=20)
        assert not alive
        assert fetch(f"{engine.url}/health") == (0, None)
    record = json.loads(next((tmp_path / "home" / "launches").glob("*/launch.json")).read_text())
    assert record["state"] == "stopped"


def test_a_progress_bar_moves_a_phase_while_it_is_rewritten(tmp_path: Path, program: Path) -> None:
    """tqdm ends no line until it is done: a bar that stands still for minutes would look like a hung start."""
    bar = "\rLoading safetensors checkpoint shards:  43% Completed | 3/7 [00:00<00:00, 36.12it/s]"
    with started(tmp_path, program, hangs=3, bar=bar) as engine:
        engine.wait("starting", timeout_s=30)

        def moved() -> bool:
            weights = [phase for phase in engine.state()["launch"]["phases"] if phase["phase"] == "weights"]
            return bool(weights) and weights[0]["progress"] == {"done": 3, "total": 7, "unit": "shards"}

        wait_for("the phase moves", moved, 20)


def test_what_ends_a_start_is_told_with_the_line_that_says_so(tmp_path: Path, program: Path) -> None:
    with started(tmp_path, program, fails=OUT_OF_MEMORY) as engine:
        state = engine.wait("failed", timeout_s=30)
        diagnosis = state["launch"]["diagnosis"]
        assert diagnosis["family"] == "memory"
        assert any("larger than the available KV cache memory" in line["text"] for line in diagnosis["evidence"])
        lines = engine.log().split("\n")
        assert all(line["text"][:60] in lines[line["number"] - 1] for line in diagnosis["evidence"])
        assert state["launch"]["exit_status"] == "exit status 1"


@pytest.mark.parametrize(
    ("number", "causes"),
    [
        (signal.SIGKILL, {"killed", "killed-from-outside"}),  # whether the kernel counts its kills here
        (signal.SIGSEGV, {"segmentation-fault"}),
    ],
)
def test_a_worker_that_was_killed_is_the_cause_whatever_its_parent_says_then(
    tmp_path: Path, program: Path, number: signal.Signals, causes: set[str]
) -> None:
    """The core calls it an error of its own, with a traceback: that is aftermath. Only who watches the worker knows."""
    with started(tmp_path, program, worker=number) as engine:
        state = engine.wait("failed", timeout_s=30)
        first, *others = state["launch"]["process_ends"]
        assert (first["name"], first["status"]) == ("Worker_TP1", -number)
        assert [(end["name"], end["status"]) for end in others if not end.get("aftermath")] == [("APIServer", 1)]
        diagnosis = state["launch"]["diagnosis"]
        assert diagnosis["cause"] in causes
        assert f"process {first['pid']}" in diagnosis["summary"]
        assert state["launch"]["exit_status"] == "exit status 1"


LOST_WORKER = """\
(EngineCore pid=2) ERROR 11-20 16:21:06 [multiproc_executor.py:315] Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.
(EngineCore pid=2) ERROR 11-20 16:21:09 [core.py:1512] EngineCore encountered a fatal error.
(EngineCore pid=2) ERROR 11-20 16:21:09 [core.py:1512] Traceback (most recent call last):
(EngineCore pid=2) ERROR 11-20 16:21:09 [core.py:1512]   File "/x/vllm/v1/engine/core.py", line 1702, in _handle
(EngineCore pid=2) ERROR 11-20 16:21:09 [core.py:1512] RuntimeError: Executor failed.
""".splitlines()  # noqa: E501


def test_what_the_log_says_goes_before_an_answer_that_only_says_that_it_failed(tmp_path: Path, program: Path) -> None:
    """vLLM's server lives on for some seconds after its engine, and answers."""
    with started(tmp_path, program, dies=LOST_WORKER) as engine:
        launch = engine.wait("failed", timeout_s=30)["launch"]
        assert launch["diagnosis"]["cause"] in ("killed", "killed-from-outside")
        assert "500" not in launch["reason"]


def test_an_answer_that_says_that_it_failed_is_told_where_the_log_says_nothing(tmp_path: Path, program: Path) -> None:
    with started(tmp_path, program, dies=[]) as engine:
        assert "500" in engine.wait("failed", timeout_s=30)["launch"]["reason"]


@pytest.mark.parametrize(("fits", "patch"), [("64", {"max-model-len": 64}), ("999999", None)])
def test_a_change_is_offered_only_where_preflight_would_let_it_start(
    tmp_path: Path, program: Path, fits: str, patch: dict[str, Any] | None
) -> None:
    """vLLM suggests a context that this model does not have."""
    lines = [line.replace("length is 64", f"length is {fits}") for line in OUT_OF_MEMORY]
    with started(tmp_path, program, fails=lines) as engine:
        fix = engine.wait("failed", timeout_s=30)["launch"]["diagnosis"]["fix"]
        assert fix.get("patch") == patch
        assert bool(fix.get("blocked")) is (patch is None)


def test_the_first_error_of_a_start_is_an_event_within_two_seconds(tmp_path: Path, program: Path) -> None:
    """Of what it logged, and whoever follows the events has it: a start that goes on for minutes hides no trouble. What
    it survives is no failure."""
    line = "(EngineCore pid=2) ERROR 11-20 16:20:37 [fused.py:9] Cannot open the tuned configuration at "
    with started(tmp_path, program, errs=line, line_s=0.3) as engine:
        engine.wait("preflight", "starting", timeout_s=30)
        with urllib.request.urlopen(f"{engine.url}/appliance/events", timeout=30) as events:
            told = next(raw for raw in events if b'"error-logged"' in raw)
            came = time.time()
        error = json.loads(told.partition(b":")[2])["body"]["line"]
        logged = float(error["text"].rpartition(" ")[2])
        assert came - logged < 2
        assert line.rpartition("] ")[2] in engine.log().splitlines()[error["number"] - 1]
        assert "diagnosis" not in engine.wait("ready", timeout_s=30)["launch"]


def test_an_engine_that_logs_its_end_and_stays_has_failed(tmp_path: Path, program: Path) -> None:
    """It is not starting for ever; and it is ended."""
    with started(tmp_path, program, stays=OUT_OF_MEMORY) as engine:
        state = engine.wait("failed", timeout_s=30)
        assert state["launch"]["diagnosis"]["family"] == "memory"
        wait_for("nothing runs", lambda: not family(engine.process.pid), 5)


def test_one_killed_while_it_serves_is_failed_at_once(tmp_path: Path, program: Path) -> None:
    """By a signal that it cannot answer, as the kernel's out-of-memory killer sends it."""
    with started(tmp_path, program) as engine:
        engine.wait("ready", timeout_s=30)
        server_of(engine).kill()
        state = engine.wait("failed", timeout_s=30)  # by its silence alone, which takes longer, it would be hung
        assert "SIGKILL" in state["launch"]["exit_status"]
        assert fetch(f"{engine.url}/v1/completions", {"model": "real", "prompt": "x"})[0] == 503


def test_nothing_is_left_when_the_front_door_is_killed(tmp_path: Path, program: Path) -> None:
    """Not even what left for a session of its own, and does not hear SIGTERM."""
    with started(tmp_path, program, leaves=True, deaf=True) as engine:
        engine.wait("ready", timeout_s=30)
        everything = family(engine.process.pid)
        assert len(everything) >= 3
        engine.process.kill()
        _, alive = psutil.wait_procs(everything, timeout=20)
        assert not alive


def test_one_that_does_not_hear_is_ended_all_the_same(tmp_path: Path, program: Path) -> None:
    with started(tmp_path, program, deaf=True) as engine:
        engine.wait("ready", timeout_s=30)
        everything = family(engine.process.pid)
        engine.stop()
        assert engine.process.returncode == 0  # not killed by the test itself
        _, alive = psutil.wait_procs(everything, timeout=20)
        assert not alive


def test_a_stopped_engine_is_hung(tmp_path: Path, program: Path) -> None:
    with started(tmp_path, program) as engine:
        engine.wait("ready", timeout_s=30)
        for process in family(engine.process.pid):
            os.kill(process.pid, signal.SIGSTOP)
        state = engine.wait("hung", "failed", timeout_s=20)
        assert state["state"] == "hung"
        assert "SIGSTOP" in state["launch"]["reason"]


def test_who_waits_for_a_hung_engine_is_told_before_it_is_ended(tmp_path: Path, program: Path) -> None:
    """And not what ending it does to vLLM's own inside."""
    with started(tmp_path, program, silent=True, deaf=True) as engine:
        engine.wait("ready", timeout_s=30)
        server = server_of(engine)
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(fetch, f"{engine.url}/v1/completions", {"model": "real", "prompt": "x"}, 30)
            wait_for("it is asked", lambda: "waits for ever" in engine.log(), 10)
            server.suspend()
            status, answer = waits.result()
        assert server.is_running()
        assert server.status() != psutil.STATUS_ZOMBIE
        assert (status, "SIGSTOP" in answer["error"]["message"]) == (502, True)


def test_numbers_that_are_none_fail_the_self_test(tmp_path: Path, program: Path) -> None:
    with started(tmp_path, program, nan=True) as engine:
        state = engine.wait("failed", "ready", timeout_s=30)
        assert state["state"] == "failed"
        assert "self-test" in state["launch"]["reason"]
        assert phases(state)["self-test"] == "failed"


@pytest.mark.parametrize(
    ("path", "answer", "bad"),
    [
        ("/v1/embeddings", {"data": [{"embedding": [0.5, -0.25]}]}, {"data": [{"embedding": [0.5, None]}]}),
        ("/pooling", {"data": [{"data": [[0.5], [-0.25]]}]}, {"data": [{"data": [[]]}]}),
        ("/classify", {"data": [{"probs": [0.5, 0.5]}]}, {"data": []}),
        ("/score", {"data": [{"score": 0.5}]}, {"data": [{"score": "high"}]}),
        ("/v1/audio/transcriptions", {"text": ""}, {"words": []}),
    ],
)
def test_a_model_that_generates_no_text_is_proved_by_what_it_makes(
    tmp_path: Path, program: Path, path: str, answer: Any, bad: Any
) -> None:
    with started(tmp_path / "good", program, only={path: answer}) as engine:
        engine.wait("ready", timeout_s=30)
    with started(tmp_path / "bad", program, only={path: bad}) as engine:
        assert engine.wait("failed", "ready", timeout_s=30)["state"] == "failed"


@pytest.mark.parametrize("status", [400, 501])
def test_a_vllm_that_has_every_route_is_asked_for_what_its_model_can(
    tmp_path: Path, program: Path, status: int
) -> None:
    """Its older versions are so."""
    with started(tmp_path, program, only={"/classify": {"data": [{"probs": [1.0]}]}}, unsupported=status) as engine:
        engine.wait("ready", timeout_s=30)


def test_a_model_that_answers_nothing_says_what_was_tried(tmp_path: Path, program: Path) -> None:
    with started(tmp_path, program, only={}) as engine:
        state = engine.wait("failed", "ready", timeout_s=30)
        assert (state["state"], "/v1/audio/transcriptions" in state["launch"]["reason"]) == ("failed", True)


def test_what_vllms_server_answers_by_itself_hides_no_core_that_generates_nothing(
    tmp_path: Path, program: Path
) -> None:
    """It is probed all the same, as it is while nobody asks for anything."""
    with started(tmp_path, program, silent=True) as engine:
        engine.wait("ready", timeout_s=30)

        def probed() -> bool:
            assert fetch(f"{engine.url}/tokenize", {"model": "real", "prompt": "x"})[0] == 200
            return "waits for ever" in engine.log()

        wait_for("the core is asked for a token", probed, 1.5 * PROBE_AFTER_S, every_s=1)


def test_a_probe_that_nobody_takes_is_not_the_cause(tmp_path: Path, program: Path) -> None:
    """vLLM logs why its core died, and closes its socket before it ends."""
    with started(tmp_path, program, cries=OUT_OF_MEMORY) as engine:
        engine.wait("ready", timeout_s=30)
        words = server_of(engine).cmdline()
        assert fetch(f"{engine.url}/tokenize", {"model": "real", "prompt": "x"})[0] == 200
        Path(next(word for word in words if word.startswith("--uds=")).removeprefix("--uds=")).unlink()
        state = engine.wait("failed", timeout_s=30)
        assert state["launch"]["diagnosis"]["family"] == "memory"


def numbers(engine: Engine) -> dict[str, float]:
    """Samples of /metrics that have no labels, and vLLM's, by the name of their family."""
    with urllib.request.urlopen(f"{engine.url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name.partition("{")[0]: float(value) for name, _, value in samples}


def test_our_own_questions_are_nobodys_load(tmp_path: Path, program: Path) -> None:
    """Neither the self-test nor a probe: vLLM counts their tokens, our counters do not, and lose none of a client's."""
    with started(tmp_path, program, cries=OUT_OF_MEMORY) as engine:
        engine.wait("ready", timeout_s=30)
        before = numbers(engine)["vllm:generation_tokens_total"]
        assert before > 0
        fetch(f"{engine.url}/tokenize", {"model": "real", "prompt": "x"})  # what it logs makes a probe due
        wait_for("a probe", lambda: numbers(engine)["vllm:generation_tokens_total"] == before + 1, 5)
        fetch(f"{engine.url}/v1/completions", {"model": "real", "prompt": "x", "max_tokens": 11})

        def counted() -> dict[str, float] | None:
            told = numbers(engine)
            return told if told["ingot:generation_tokens_total"] else None

        told = wait_for("the tokens are counted", counted, 5)
        assert (told["ingot:generation_tokens_total"], told["ingot:prompt_tokens_total"]) == (11, 3)


def test_figures_become_the_dashboards_load_and_our_counters(tmp_path: Path, program: Path) -> None:
    """vLLM's own metrics are there too, under their own names; those of its Python are not."""
    with started(tmp_path, program) as engine:
        engine.wait("ready", timeout_s=30)
        fetch(f"{engine.url}/v1/completions", {"model": "real", "prompt": "x", "max_tokens": 11})

        def counted() -> str | None:
            with urllib.request.urlopen(f"{engine.url}/metrics") as answer:
                text: str = answer.read().decode()
            return text if "ingot:generation_tokens_total 11.0" in text else None

        text = wait_for("the tokens are counted", counted, 30)
        assert 'vllm:kv_cache_usage_perc{engine="0",model_name="real"} 0.25' in text
        assert "ingot:kv_cache_usage_perc 0.25" in text
        assert engine.state()["load"]["cache_usage"] == 0.25


def test_a_launch_with_a_pack_compiles_into_a_copy_of_it(tmp_path: Path, program: Path) -> None:
    """Where the copy finds no room, the diagnosis says so. Also where the pack is damaged by then: vLLM starts, with
    the caches that it had. The pack is made from another shell than the front door was started in: what it depends on
    is what the launch wrote down."""
    home = tmp_path / "home"
    caches = home / "caches" / "vllm" / "triton" / "AB"
    packing = {"INGOT_HOME": str(home), "INGOT_VLLM": "/nowhere", "TORCHINDUCTOR_MAX_AUTOTUNE": "1"}
    with started(tmp_path, program) as engine:
        engine.wait("ready", timeout_s=30)
        caches.mkdir(parents=True)
        (caches / "kernel.cubin").write_bytes(KERNEL)
    profile = tmp_path / "profile.yaml"
    made = CliRunner(env=packing).invoke(main, ["cache", "pack", "--profile", str(profile), "--json"])
    assert made.exit_code == 0, made.output
    pack = Path(json.loads(made.stdout)["path"])
    assert pack.parent == home / "cache-packs"
    assert "TORCHINDUCTOR_MAX_AUTOTUNE" not in read_pack(pack).pack.facts.settings

    with started(tmp_path, program) as engine:
        state = engine.wait("ready", timeout_s=30)
        assert "caches-warm" in [finding["id"] for finding in state["launch"]["findings"]]
        [copy] = (home / "caches").glob("vllm-pack-*")
        assert (copy / "triton" / "AB" / "kernel.cubin").read_bytes() == KERNEL
        assert server_of(engine).environ()["TRITON_CACHE_DIR"] == str(copy / "triton")

    shutil.rmtree(copy)
    with no_file_over(len(KERNEL) - 1), started(tmp_path, program) as engine:
        state = engine.wait("failed", timeout_s=30)
        assert copy.name in state["launch"]["reason"]
        assert copy.name in state["launch"]["diagnosis"]["summary"]

    [compiled] = (pack / "objects").iterdir()
    compiled.write_bytes(KERNEL.upper())
    with started(tmp_path, program) as engine:
        engine.wait("ready", timeout_s=30)
        assert server_of(engine).environ()["TRITON_CACHE_DIR"] == str(home / "caches" / "vllm" / "triton")
        assert pack.name in engine.log().splitlines()[0]
