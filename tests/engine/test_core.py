"""The core as a process, spoken to over its sockets as the supervisor does it."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import torch
import zmq

from appliance.core_protocol import (
    Abort,
    CoreBeat,
    CorePhase,
    EngineConfig,
    Fatal,
    FinishReason,
    FromCore,
    Hello,
    Loaded,
    Outputs,
    SamplingParams,
    Shutdown,
    Submit,
    ToCore,
    decode_from_core,
    encode,
)
from appliance.engine.core import CHECK_BOOKS, Core, run
from appliance.engine.heartbeat import Activity, Counters
from appliance.engine.scheduler import Scheduler
from appliance.models.collectives import ALONE
from tests.configured import engine_config
from tests.tiny import write_checkpoint

CORE = [sys.executable, "-m", "appliance.engine", "--connect"]


class FrontDoor:
    """The other end of a core's sockets."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ingot-test-"))
        self._context = zmq.Context()
        self._out = self._context.socket(zmq.PUSH)
        self._out.bind(f"ipc://{self.folder}/to-core")
        self._in = self._context.socket(zmq.PULL)
        self._in.bind(f"ipc://{self.folder}/from-core")

    def send(self, message: ToCore) -> None:
        self._out.send(encode(message))

    def until(self, wanted: Callable[[FromCore], bool], timeout_s: float = 60) -> list[FromCore]:
        """All messages up to the first for which `wanted` holds."""
        seen: list[FromCore] = []
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._in.poll(100):
                seen.append(decode_from_core(self._in.recv()))
                if wanted(seen[-1]):
                    return seen
                assert not isinstance(seen[-1], Fatal), seen[-1].traceback
        raise TimeoutError(f"not within {timeout_s} s; seen: {seen}")

    def close(self) -> None:
        self._context.destroy(linger=0)


def is_a(kind: type) -> Callable[[FromCore], bool]:
    return lambda message: isinstance(message, kind)


@pytest.fixture
def front_door() -> Iterator[FrontDoor]:
    end = FrontDoor()
    yield end
    end.close()


@pytest.fixture
def core(front_door: FrontDoor) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([*CORE, str(front_door.folder)], stderr=subprocess.PIPE, start_new_session=True)
    yield process
    process.kill()
    process.wait()


def config(folder: Path) -> EngineConfig:
    return engine_config(folder, max_model_len=512, max_num_seqs=1, num_blocks=40)


def submit(name: str, max_tokens: int) -> Submit:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    return Submit(request_id=name, prompt_token_ids=[7, 8, 9], sampling=sampling)


def test_a_core_says_hello_loads_with_progress_generates_and_ends_when_told(front_door, core, tmp_path):
    checkpoint = write_checkpoint(tmp_path / "model")
    hello = front_door.until(is_a(Hello))[-1]
    assert isinstance(hello, Hello)
    assert hello.pid == core.pid
    front_door.send(config(checkpoint))
    loading = front_door.until(is_a(Loaded))
    phases = [m for m in loading if isinstance(m, CorePhase)]
    assert [p.phase for p in phases if p.outcome] == ["weights", "cache", "graphs"]
    weights = [p.progress for p in phases if p.phase == "weights"]
    assert weights[0].done == 0
    assert weights[-1].done == weights[-1].total == loading[-1].weight_bytes
    front_door.send(submit("a", 5))
    messages = front_door.until(lambda m: isinstance(m, Outputs) and m.outputs[0].finish_reason is not None)
    outputs = [o for m in messages if isinstance(m, Outputs) for o in m.outputs]
    assert [len(o.token_ids) for o in outputs] == [1] * 5
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    front_door.send(Shutdown())
    assert core.wait(10) == 0


def test_an_abort_frees_the_slot_for_the_next_request(front_door, core, tmp_path):
    """One slot, held by a request that would run for hundreds of tokens: the next one gets it at once."""
    front_door.send(config(write_checkpoint(tmp_path / "model")))
    front_door.until(is_a(Loaded))
    front_door.send(submit("long", 500))
    front_door.send(submit("next", 2))
    front_door.until(is_a(Outputs))
    front_door.send(Abort("long"))
    messages = front_door.until(lambda m: isinstance(m, Outputs) and m.outputs[0].finish_reason is not None)
    outputs = [o for m in messages if isinstance(m, Outputs) for o in m.outputs]
    assert outputs[-1].request_id == "next"
    assert sum(o.request_id == "long" for o in outputs) < 400


def test_what_can_never_run_is_answered_with_the_reason(front_door, core, tmp_path):
    front_door.send(config(write_checkpoint(tmp_path / "model")))
    front_door.until(is_a(Loaded))
    sampling = SamplingParams(max_tokens=1)
    front_door.send(Submit(request_id="long", prompt_token_ids=[1] * 512, sampling=sampling))
    front_door.send(Submit(request_id="odd", prompt_token_ids=[512], sampling=sampling))
    for request_id in ("long", "odd"):
        message = front_door.until(is_a(Outputs))[-1]
        assert isinstance(message, Outputs)
        assert message.outputs[0].finish_reason is FinishReason.ERROR
        assert message.outputs[0].request_id == request_id
        assert "512" in (message.outputs[0].error or "")


def test_a_core_that_fails_tells_its_first_exception_and_exits(front_door, core, tmp_path):
    folder = write_checkpoint(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    front_door.send(config(folder))
    fatal = front_door.until(is_a(Fatal))[-1]
    assert isinstance(fatal, Fatal)
    assert fatal.exception == "CheckpointError"
    assert "model.safetensors" in fatal.message
    assert core.wait(10) == 1
    assert b"Traceback" in core.stderr.read()


def test_a_core_beats_while_it_is_idle_and_says_what_it_does(front_door, core, tmp_path):
    front_door.send(config(write_checkpoint(tmp_path / "model")))
    front_door.until(is_a(Loaded))
    beats = [
        m for m in front_door.until(lambda m: isinstance(m, CoreBeat) and m.where == "idle") if isinstance(m, CoreBeat)
    ]
    assert beats[-1].load.running == 0


@pytest.mark.parametrize("probe", [False, True])
def test_a_probe_is_no_load(front_door, core, tmp_path, probe):
    """The appliance's own token every ten seconds must not look like somebody's traffic."""
    front_door.send(config(write_checkpoint(tmp_path / "model")))
    front_door.until(is_a(Loaded))
    front_door.until(is_a(CoreBeat))
    front_door.send(msgspec.structs.replace(submit("a", 20), probe=probe))
    front_door.until(lambda m: isinstance(m, Outputs) and m.outputs[0].finish_reason is not None)
    beat = front_door.until(is_a(CoreBeat))[-1]
    assert isinstance(beat, CoreBeat)
    assert (beat.load.output_tokens_per_s > 0, beat.load.prompt_tokens_per_s > 0) == (not probe, not probe)


class Script:
    """A link that hands the core these messages, and then nothing for a few idle rounds."""

    def __init__(self, *messages: ToCore) -> None:
        self._messages = list(messages)
        self._idle_rounds = 3

    def send(self, message: FromCore) -> None:
        """Nobody listens."""

    def receive(self, timeout_s: float) -> ToCore | None:
        if self._messages:
            return self._messages.pop(0)
        self._idle_rounds -= timeout_s > 0
        return Shutdown() if self._idle_rounds < 0 else None


@pytest.mark.parametrize("asked", [False, True])
def test_the_books_are_checked_only_where_a_developer_asks(tmp_path, monkeypatch, asked):
    """It takes longer the larger the cache is, and what it finds ends the core: not at a customer's."""
    checks: list[int] = []
    monkeypatch.setattr(Scheduler, "check_books", lambda _: checks.append(1))
    monkeypatch.delenv(CHECK_BOOKS, raising=False)
    if asked:
        monkeypatch.setenv(CHECK_BOOKS, "1")
    script: Any = Script(config(write_checkpoint(tmp_path / "model")), submit("a", 3))
    threads = torch.get_num_threads()
    run(script, Activity(), [Counters()])
    torch.set_num_threads(threads)
    assert bool(checks) == asked


def test_the_core_tells_what_its_start_took(tmp_path, capfd):
    """Part by part, so that a slow one is seen in the launch's log."""
    script: Any = Script(config(write_checkpoint(tmp_path / "model")))
    activity, threads, began = Activity(), torch.get_num_threads(), time.monotonic()
    run(script, activity, [Counters()])
    torch.set_num_threads(threads)
    assert {"weights", "cache", "graphs"} <= activity.taken.keys()
    assert sum(activity.taken.values()) <= time.monotonic() - began
    lines = capfd.readouterr().err.splitlines()
    assert any(line.startswith("start: ") and "weights" in line for line in lines)
    assert any(re.fullmatch(r"\S+ GB of weights in \S+ s, \S+ GB/s", line) for line in lines)


def test_what_is_loaded_is_never_walked_by_the_collector_again(tmp_path):
    try:
        core = Core(config(write_checkpoint(tmp_path / "model")), lambda phase: None, lambda line: None, ALONE)
        assert not any(each is core.engine.scheduler for each in gc.get_objects())
        assert len(gc.get_objects()) < gc.get_freeze_count() / 10
    finally:
        gc.unfreeze()


class Totals(list[Counters]):
    """Remembers how many requests it was ever told are running, and how many waiting."""

    def __init__(self) -> None:
        super().__init__([Counters()])
        self.running: set[int] = set()
        self.waiting: set[int] = set()

    def __setitem__(self, place: Any, counters: Any) -> None:
        super().__setitem__(place, counters)
        self.running.add(counters.running)
        self.waiting.add(counters.waiting)


@pytest.mark.parametrize(
    ("probes", "seats", "running", "waiting"),
    [
        ((True,), 2, {0}, {0}),
        ((False,), 2, {0, 1}, {0}),
        ((True, False), 2, {0, 1}, {0}),
        ((False, True), 1, {0, 1}, {0}),
        ((False, False), 1, {0, 1}, {0, 1}),
    ],
)
def test_a_probe_never_counts_as_load(tmp_path, probes, seats, running, waiting):
    """Neither alone, nor beside a request, nor queued behind one: an engine that nobody uses shows none."""
    checkpoint = write_checkpoint(tmp_path / "model")
    asked = [msgspec.structs.replace(submit(f"r{i}", 5), probe=probe) for i, probe in enumerate(probes)]
    script: Any = Script(engine_config(checkpoint, max_model_len=512, max_num_seqs=seats, num_blocks=40), *asked)
    threads = torch.get_num_threads()
    totals = Totals()
    run(script, Activity(), totals)
    torch.set_num_threads(threads)
    assert (totals.running, totals.waiting) == (running, waiting)


def test_a_core_whose_parent_is_killed_ends_by_itself(front_door):
    """Nothing is orphaned: not even when the front door has no time to say goodbye."""
    code = (
        "import subprocess, sys, time\n"
        f"p = subprocess.Popen({[*CORE, str(front_door.folder)]!r}, start_new_session=True)\n"
        "print(p.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    front_door.until(is_a(Hello))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=20)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
