"""The real vLLM, unmodified, for CPUs: one good start, and every start that cannot succeed diagnosed from its own log.

`make test-vllm` installs it and runs these; without it they are left out.
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import json
import os
import shutil
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.log_text import read_log
from appliance.home import Home
from appliance.profile.vllm_json import OBJECTS
from appliance.profile.vllm_options import FLAGS, GONE, INSTEAD, VARIABLES
from appliance.vllm.backends import OPTIONS
from appliance.vllm.installation import read_installation
from appliance.vllm.settings import FLAGS as RENDERED
from appliance.vllm.source import vllm_source
from appliance.vllm_program import find_program
from tests.bench.faults.spoiling import write_model
from tests.running import fetch, wait_for
from tests.vllm.bare import errors, preflight, start
from tests.vllm.provoked import PROVOKED, Provoked
from tests.vllm.real import PROFILE, VLLM, Engine, family, front_door

pytestmark = [
    pytest.mark.skipif(
        not (VLLM and os.environ.get("INGOT_VLLM_TESTS")), reason="make test-vllm installs a vLLM and runs these"
    ),
    pytest.mark.timeout(600),
]
# A phase after the engine's start is hung within this, instead of five minutes or fifteen.
SHORT = {"SHORT_DEADLINE_S": "45", "PYTHONPATH": str(Path(__file__).parent / "short_deadlines")}
CHAT = {"model": "real", "messages": [{"role": "user", "content": "What does sealed mean?"}], "max_tokens": 12}


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("caches")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with front_door(tmp_path_factory.mktemp("real"), PROFILE) as engine:
        state = engine.wait("ready", "failed", "hung")
        assert state["state"] == "ready", engine.log()[-4000:]
        yield engine


def test_a_good_start_shows_its_phases(engine: Engine) -> None:
    phases = engine.state()["launch"]["phases"]
    assert [phase["phase"] for phase in phases] == [
        "preflight", "engine start", "weights", "compile", "cache", "self-test", "ready",
    ]  # fmt: skip
    assert all(phase["outcome"] == "done" for phase in phases)
    assert next(phase for phase in phases if phase["phase"] == "weights")["progress"]["unit"] == "shards"


def test_nothing_in_the_log_of_a_good_start_is_taken_for_a_cause(engine: Engine) -> None:
    log = next((engine.home / "launches").glob("*/engine.log"))
    assert diagnose(read_log(log)).family is None


def test_no_port_leads_past_the_front_door(engine: Engine) -> None:
    """vLLM's server and its engine listen on no port at all. Their workers do, for one another: torch.distributed, and
    nowhere but on this machine."""
    listeners = {
        (" ".join(process.cmdline()).strip(), connection.laddr.ip)
        for process in family(engine.process.pid)
        for connection in process.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listeners <= {("VLLM::Worker", "127.0.0.1"), ("VLLM::Worker", "::1")}


def test_chat_and_streams_go_through_the_front_door(engine: Engine) -> None:
    status, answer = fetch(f"{engine.url}/v1/chat/completions", CHAT | {"temperature": 0})
    assert status == 200
    assert answer["usage"]["completion_tokens"] == 12
    request = urllib.request.Request(
        f"{engine.url}/v1/chat/completions",
        json.dumps(CHAT | {"stream": True, "temperature": 0}).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as stream:
        frames = [json.loads(line[6:]) for line in stream if line.startswith(b"data: {")]
    text = "".join(frame["choices"][0]["delta"].get("content") or "" for frame in frames)
    assert text == answer["choices"][0]["message"]["content"]


def test_a_picture_is_fetched_from_nowhere_and_errors_are_vllms(engine: Engine) -> None:
    status, answer = fetch(f"{engine.url}/v1/chat/completions", CHAT | {"model": "other"})
    assert (status, answer["error"]["param"]) == (404, "model")
    picture = {"type": "image_url", "image_url": {"url": "http://192.0.2.1/x.png"}}
    body = CHAT | {"messages": [{"role": "user", "content": [picture]}]}
    assert 400 <= fetch(f"{engine.url}/v1/chat/completions", body)[0] < 500


def test_vllms_figures_reach_metrics_and_dashboard(engine: Engine) -> None:
    fetch(f"{engine.url}/v1/chat/completions", CHAT)

    def text() -> str | None:
        with urllib.request.urlopen(f"{engine.url}/metrics") as answer:
            told: str = answer.read().decode()
        counted = [line for line in told.splitlines() if line.startswith("ingot:generation_tokens_total ")]
        return told if counted and float(counted[0].split()[1]) >= 12 else None

    told = wait_for("the tokens are counted", text, 10)
    assert "\nvllm:generation_tokens_total{" in told
    assert "\nprocess_cpu_seconds_total" not in told


def test_the_lists_of_options_are_those_of_this_vllm() -> None:
    """Every flag and variable that a profile may give, or that Ingot renders, is one that vLLM has; none that is said
    to be gone is there."""
    found = find_program({"INGOT_VLLM": VLLM})
    flags, variables = options_of(found.python, found.path)
    known = {flag.name for flag in FLAGS} | {row.flag for row in RENDERED} | {"uds", "allowed-media-domains"}
    assert known - flags == set()
    told = [options for backends in OPTIONS.values() for options in backends.values()]
    assert {flag for options in told for flag in options.arguments} - flags == set()
    assert {name for options in told for name in options.environment} - variables == set()
    ours = {variable.name: variable for variable in VARIABLES if variable.name.startswith("VLLM_")}
    assert ours.keys() - variables == set()
    choices = vllm_source(found).choices
    assert "VLLM_WORKER_MULTIPROC_METHOD" in choices
    assert {name: set(ours[name].choices) for name in ours.keys() & choices} == {
        name: set(choices[name]) for name in ours.keys() & choices
    }
    assert {name for name in GONE if name in flags | variables} == set()
    assert {name for name in INSTEAD if name.islower()} - flags == set()


def test_the_json_of_options_is_that_of_this_vllm() -> None:
    """Every key that a profile may give is a field of the structure that vLLM reads it into."""
    package = packages_of(find_program({"INGOT_VLLM": VLLM}).python) / "vllm" / "config"
    compilation = OBJECTS["compilation-config"]
    for file, name, allowed in (
        ("compilation.py", "CompilationConfig", compilation.keys | compilation.inside.keys()),
        ("compilation.py", "PassConfig", compilation.inside["pass_config"].keys),
        ("compilation.py", "DynamicShapesConfig", compilation.inside["dynamic_shapes_config"].keys),
        ("pooler.py", "PoolerConfig", OBJECTS["pooler-config"].keys),
        ("structured_outputs.py", "StructuredOutputsConfig", OBJECTS["structured-outputs-config"].keys),
    ):
        assert allowed - fields_of(package / file, name) == set()


def fields_of(file: Path, name: str) -> set[str]:
    found = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef) and node.name == name]
    targets = (node.target for node in found[0].body if isinstance(node, ast.AnnAssign))
    return {target.id for target in targets if isinstance(target, ast.Name)}


def packages_of(python: Path) -> Path:
    return next(python.parent.parent.glob("lib/python3*/site-packages"))


def options_of(python: Path, program: Path) -> tuple[set[str], set[str]]:
    import re
    import subprocess

    done = subprocess.run([program, "serve", "--help=all"], capture_output=True, text=True, timeout=240, check=True)
    flags = set(re.findall(r"--([a-z0-9][a-z0-9-]*)", done.stdout))
    source = (packages_of(python) / "vllm" / "envs.py").read_text()
    return flags, set(re.findall(r'"(VLLM_[A-Z0-9_]+)"', source))


def test_the_installation_is_what_it_says() -> None:
    installation = read_installation(find_program({"INGOT_VLLM": VLLM}))
    assert (installation.built_for, installation.reads_uuids, installation.too_old) == ("cpu", True, False)


@pytest.mark.parametrize("case", PROVOKED, ids=lambda case: case.name)
def test_a_start_that_cannot_succeed_is_told_from_its_own_log(case: Provoked, home: Home, caches: Path) -> None:
    """By preflight before it begins, where one can know; and by the log of a vLLM that was started all the same."""
    ended = start(case, home, home.root / "vllm.log", caches)
    assert ended.exit_status != 0
    lines = read_log(ended.log)
    told = diagnose(lines, exit_status=ended.exit_status)
    assert told.family in case.families, f"{told}\n{ended.log.read_text(errors='replace')[-3000:]}"
    assert any(case.evidence in line.text for line in told.evidence), told
    texts = {line.number: line.text for line in lines}
    assert all(line.text[:40] in texts[line.number] for line in told.evidence)
    assert told.fix is not None
    found = errors(preflight(case, home))
    assert (case.preflight in found) if case.preflight else not found, found


def test_a_classifier_is_proved_by_what_it_makes_of_a_text(tmp_path: Path) -> None:
    """It has no route that generates; its weights are made up here, as the bundled model's are for another task."""
    extra = {"runner": "pooling", "convert": "classify", "load-format": "dummy"}
    with front_door(tmp_path, PROFILE | {"enforce-eager": True, "vllm": {"extra-args": extra}}) as engine:
        assert engine.wait("ready", "failed", "hung")["state"] == "ready"
        status, answer = fetch(f"{engine.url}/classify", {"model": "real", "input": "What does sealed mean?"})
        assert (status, answer["data"][0]["num_classes"]) == (200, 2)
        assert fetch(f"{engine.url}/v1/completions", {"model": "real", "prompt": "x"})[0] == 404


def test_a_worker_that_is_killed_while_it_starts_is_told(tmp_path: Path) -> None:
    """As the kernel's out-of-memory killer does it: the process says nothing, and those that waited for it do."""
    with front_door(tmp_path, PROFILE) as engine:
        engine.wait("starting", timeout_s=60)
        wait_for("the engine's own process speaks", lambda: "Initializing a V1 LLM engine" in engine.log(), 240)
        worker = named(engine, "EngineCore")
        worker.send_signal(signal.SIGKILL)
        state = engine.wait("failed", "hung", timeout_s=60)
        assert state["state"] == "failed"
        assert state["launch"]["diagnosis"]["family"] in ("memory", "host")
        wait_for("nothing runs", lambda: not family(engine.process.pid), 10)


def test_a_pipe_in_place_of_the_weights_is_told_as_one_that_nobody_opens(tmp_path: Path) -> None:
    """It replaces the file after preflight, and opening it takes for ever."""
    model = tmp_path / "models" / "mine"
    model.parent.mkdir()
    write_model(model)
    profile = PROFILE | {"enforce-eager": True, "model": {"path": "mine"}}
    with front_door(tmp_path, profile, **SHORT) as engine:
        wait_for("preflight is over", lambda: "engine start" in phases_of(engine), 120)
        weights = model / "model.safetensors"
        weights.unlink()
        os.mkfifo(weights)
        found = diagnosed(engine)
    assert (found["family"], found["cause"]) == ("hang", "waits-for-opener")
    assert f"pipe {weights} to be opened, which no process has open" in found["summary"]


def test_a_lock_on_the_compile_cache_is_told_with_who_holds_it(tmp_path: Path) -> None:
    """What a good launch has compiled is gone, and its lock files are held: here, by this test."""
    with front_door(tmp_path, PROFILE) as engine:
        assert engine.wait("ready", "failed", "hung")["state"] == "ready"
    compiled = list((tmp_path / "home" / "caches").rglob("*.so"))
    locks = list((tmp_path / "home" / "caches").rglob("*.lock"))
    assert compiled
    assert locks
    with contextlib.ExitStack() as held:
        for lock in locks:
            fcntl.flock(held.enter_context(lock.open("a")), fcntl.LOCK_EX)
        for file in compiled:
            file.unlink()
        shutil.rmtree(tmp_path / "home" / "launches")  # else a slow good start would set the deadline
        with front_door(tmp_path, PROFILE, **SHORT) as engine:
            found = diagnosed(engine)
    assert (found["family"], found["cause"]) == ("jit-toolchain", "build-lock")
    assert f"process {os.getpid()} holds " in found["summary"]
    assert not found["fix"]["command"].startswith("kill")  # no lock that somebody holds need be the awaited one


def phases_of(engine: Engine) -> list[str]:
    return [phase["phase"] for phase in (engine.state().get("launch") or {}).get("phases", [])]


def diagnosed(engine: Engine) -> dict[str, Any]:
    state = engine.wait("hung", "failed", "ready")
    assert state["state"] == "hung", engine.log()[-3000:]
    found: dict[str, Any] = state["launch"]["diagnosis"]
    return found


def test_a_vllm_that_is_stopped_is_hung_with_stacks(engine: Engine) -> None:
    """The last test: the engine does not live on."""
    worker = named(engine, "EngineCore")
    began = time.monotonic()
    worker.send_signal(signal.SIGSTOP)
    state = engine.wait("hung", "failed", timeout_s=60)
    assert (state["state"], time.monotonic() - began < 20) == ("hung", True)
    wait_for("nothing runs", lambda: not family(engine.process.pid), 10)


def named(engine: Engine, name: str) -> psutil.Process | None:
    for process in family(engine.process.pid):
        try:
            title = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if name in title:
            return process
    return None
