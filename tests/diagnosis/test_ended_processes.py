"""A process of the engine that was killed says nothing: another one tells with which signal it ended."""

from __future__ import annotations

import msgspec
import pytest

from appliance.core_protocol import Fatal
from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.log_text import number_lines
from appliance.launches.process_ends import first_failure, how, in_order
from appliance.protocol import EvidenceLine, LaunchRecord, Outcome, ProcessEnd

TEXT = """\
(APIServer pid=7) INFO 11-20 17:35:01 [utils.py:286] non-default args: {'model': 'm'}
(APIServer pid=7) Traceback (most recent call last):
(APIServer pid=7)   File "/x/vllm/v1/engine/utils.py", line 1431, in wait_for_engine_startup
(APIServer pid=7)     raise RuntimeError(
(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): %s
"""


@pytest.mark.parametrize(
    ("processes", "family", "cause"),
    [
        ("{'EngineCore': -9}", "memory", "killed"),
        ("{'EngineCore_DP0': -11}", "kernel-crash", "segmentation-fault"),
        ("{'EngineCore_DP0': 1, 'EngineCore_DP1': -4}", "kernel-crash", "illegal-instruction"),
        ("{}", None, None),
        ("{'EngineCore': 1}", None, None),
    ],
)
def test_a_signal_that_only_a_pointer_tells(processes: str, family: str | None, cause: str | None) -> None:
    lines = [EvidenceLine(number, text) for number, text in enumerate((TEXT % processes).splitlines(), 1)]
    told = diagnose(lines, exit_status=1)
    assert (told.family, told.cause) == (family, cause)
    assert told.evidence[-1].number == 5


def test_one_that_had_spoken_and_is_gone_without_a_status_was_killed() -> None:
    """One that never spoke may have said more in lines that are not at hand."""
    text = "(EngineCore pid=9) INFO 11-20 17:35:02 [core.py:133] Initializing a V1 LLM engine\n" + TEXT % "{}"
    lines = [EvidenceLine(number, line) for number, line in enumerate(text.splitlines(), 1)]
    told = diagnose(lines, exit_status=1)
    assert (told.family, told.cause, told.evidence[-1].number) == ("memory", "killed", 6)


WHILE_IT_SERVES = """ingot: starting vllm serve tiny
(EngineCore pid=7) INFO 11-20 17:39:22 [core.py:402] init engine took 0.52 s
INFO:     Application startup complete.
(APIServer pid=5) WARNING 11-20 17:39:33 [core_client.py:817] [shutdown] MPClient: engine core exited unexpectedly
(APIServer pid=5) ERROR 11-20 17:39:33 [async_llm.py:906] AsyncLLM output_handler failed.
(APIServer pid=5) ERROR 11-20 17:39:33 [async_llm.py:906] Traceback (most recent call last):
(APIServer pid=5) ERROR 11-20 17:39:33 [async_llm.py:906]   File "vllm/v1/engine/core_client.py", line 1235, in get
(APIServer pid=5) ERROR 11-20 17:39:33 [async_llm.py:906]     raise self._format_exception(outputs) from None
(APIServer pid=5) ERROR 11-20 17:39:33 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore \
encountered an issue. See stack trace (above) for the root cause.
INFO:     Shutting down
INFO:     Finished server process [5]
nanobind: leaked 4 instances!
""".replace("\\\n", "")
BEFORE_IT_SPOKE = """ingot: starting vllm serve tiny
(APIServer pid=5) INFO 11-20 17:38:39 [model.py:733] Resolved architecture: LlamaForCausalLM
Traceback (most recent call last):
  File "/venv/bin/vllm", line 8, in <module>
    sys.exit(main())
  File "/venv/lib/vllm/v1/engine/utils.py", line 1431, in wait_for_engine_startup
    raise RuntimeError(
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


@pytest.mark.parametrize("log", [WHILE_IT_SERVES, BEFORE_IT_SPOKE])
def test_a_core_that_was_killed_is_reported_though_its_server_ends_in_peace(log: str) -> None:
    """kill -9 of vLLM's EngineCore, before or after it was ready: its server then exits with 0 or 1, and points at a
    root cause that nobody wrote."""
    for status in (0, 1):
        found = diagnose(number_lines(log), exit_status=status, failed=True)
        assert (found.family, found.cause) == ("memory", "killed")
        assert "unexpectedly" in found.evidence[0].text or "Failed core proc" in found.evidence[0].text


def test_a_launch_that_failed_is_never_reported_as_no_failure() -> None:
    """Whatever its log says, and whatever its status."""
    found = diagnose(number_lines("INFO: all is well\n"), exit_status=0, failed=True)
    assert found.fix is not None
    assert found.evidence


def test_a_model_that_went_away_after_its_check_is_reported() -> None:
    """Preflight saw it whole; the core, seconds later, did not."""
    told = Fatal(exception="CheckpointError", message="tiny has neither model.safetensors nor an index.", traceback="")
    found = diagnose([], fatal=told)
    assert (found.family, found.cause) == ("weights", "model-changed-after-check")
    assert "tiny has neither model.safetensors nor an index." in found.summary


@pytest.mark.parametrize(
    ("what", "family", "cause"),
    [
        ("is truncated: it ends there. Copy the file again", "weights", "safetensors-damaged"),
        ("cannot be read: Input/output error. Look for errors of its disk", "host", "storage-fault"),
    ],
)
def test_a_weight_file_that_cannot_be_read_to_its_end_is_named(what: str, family: str, cause: str) -> None:
    """As `appliance/engine/readers.py` says it, with the file and the tensor."""
    message = f"model-00001-of-00002.safetensors, at byte 5,000 in model.norm.weight, {what}."
    found = diagnose([], fatal=Fatal(exception="CheckpointError", message=message, traceback=""))
    assert (found.family, found.cause) == (family, cause)
    assert "model-00001-of-00002.safetensors, at byte 5,000 in model.norm.weight" in found.summary


STARTED = """\
INFO 11-20 10:00:00 [core.py:58] Initializing a V1 LLM engine
INFO:     Application startup complete.
"""
FIGURES = "INFO 11-20 10:0{minute}:00 [loggers.py:123] Engine 000: Avg prompt throughput: {tokens} tokens/s, \
Avg generation throughput: {tokens} tokens/s, Running: 1 reqs, Waiting: 0 reqs\n"
WORKER = "Worker proc VllmWorker-1 died unexpectedly, shutting down executor.\n"
HEADED = f"ERROR 11-20 10:05:00 [multiproc_executor.py:230] {WORKER}"
XID = "[ 1234.567890] NVRM: Xid (PCI:0000:3b:00): 79, pid=77, GPU has fallen off the bus.\n"
CORE = """\
(EngineCore pid=9) ERROR 11-20 10:05:00 [core.py:700] EngineCore encountered a fatal error.
(EngineCore pid=9) ERROR 11-20 10:05:00 [core.py:700] Traceback (most recent call last):
(EngineCore pid=9) ERROR 11-20 10:05:00 [core.py:700]   File "/opt/vllm/v1/engine/core.py", line 691, in run
(EngineCore pid=9) ERROR 11-20 10:05:00 [core.py:700]     self.step()
(EngineCore pid=9) ERROR 11-20 10:05:00 [core.py:700] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate \
2.00 GiB.
"""


def figures(*tokens: float) -> str:
    return "".join(FIGURES.format(minute=minute, tokens=one) for minute, one in enumerate(tokens, 1))


@pytest.mark.parametrize("before", [STARTED, STARTED + figures(9.0, 8.0)])
@pytest.mark.parametrize("after", ["", figures(4.0), figures(4.0, 0.0, 0.0), 'INFO: "GET /health HTTP/1.1" 200 OK\n'])
@pytest.mark.parametrize(
    ("record", "family", "cause"),
    [
        (WORKER, "memory", "killed"), (HEADED, "memory", "killed"), (XID, "driver", "gpu-hardware"),
        (CORE, "memory", "gpu-out-of-memory"),
    ],
)  # fmt: skip
def test_a_death_is_found_before_the_last_lines_of_a_dying_server(
    before: str, after: str, record: str, family: str, cause: str
) -> None:
    found = diagnose(number_lines(before + record + after))
    assert (found.family, found.cause) == (family, cause)


@pytest.mark.parametrize("after", [STARTED, figures(4.0, 3.0), 'INFO: "GET /health HTTP/1.1" 200 OK\n' * 2])
@pytest.mark.parametrize("record", [WORKER, HEADED, XID, CORE])
def test_a_death_after_which_an_engine_serves_is_over(record: str, after: str) -> None:
    """It was started again, or it was another one's."""
    found = diagnose(number_lines(STARTED + record + after))
    assert (found.outcome, found.family, found.fix) == (Outcome.SERVES, None, None)


def test_words_of_a_death_in_an_ordinary_line_are_no_death() -> None:
    text = STARTED + f"INFO 11-20 10:05:00 [logger.py:43] Received request 1: prompt: '{WORKER.strip()}'\n"
    assert diagnose(number_lines(text)).fix is None


WORKER_KILLED = ProcessEnd(pid=12, name="Worker_TP1", time=10.0, status=-9, line=2)


@pytest.mark.parametrize(
    ("died", "family", "cause"),
    [
        ({}, "memory", "killed"),
        ({"out_of_memory": False}, "host", "killed-from-outside"),
        ({"status": -11}, "kernel-crash", "segmentation-fault"),
        ({"line": 99}, "memory", "gpu-out-of-memory"),  # the core had failed before, and ended its workers
    ],
)
def test_what_others_say_after_a_death_is_aftermath(died: dict[str, object], family: str, cause: str) -> None:
    end = msgspec.structs.replace(WORKER_KILLED, **died)
    found = diagnose(number_lines(STARTED.splitlines()[0] + "\nINFO: loading\n" + CORE), died=end, failed=True)
    assert (found.family, found.cause) == (family, cause)
    assert ("process 12" in found.summary) is (cause != "gpu-out-of-memory")


@pytest.mark.parametrize("died", [WORKER_KILLED, msgspec.structs.replace(WORKER_KILLED, status=3)])
@pytest.mark.parametrize("several", [False, True])
def test_only_of_several_processes_one_is_the_first(died: ProcessEnd, several: bool) -> None:
    found = diagnose(number_lines("INFO: loading\n"), died=died, several_ended=several, failed=True)
    assert ("first" in found.summary) is several
    assert "process 12" in found.summary


def test_the_system_log_is_read_where_the_process_was_killed() -> None:
    """Not where the advice is followed, hours later."""
    died = msgspec.structs.replace(WORKER_KILLED, time=1_800_000_000.0, out_of_memory=False)
    found = diagnose([], died=died, failed=True)
    assert found.fix is not None
    assert found.fix.look is not None
    assert "--since @1799999400 --until @1800000060" in found.fix.look


def test_processes_are_listed_by_time_and_with_who_ended_them() -> None:
    ours = ProcessEnd(pid=1, name="a", time=1.0, status=-15, aftermath=True, by_ingot=True)
    theirs = msgspec.structs.replace(ours, time=2.0, by_ingot=False, aftermath=False)
    assert in_order([theirs, ours]) == [ours, theirs]
    assert how(ours) != how(theirs)


def test_a_death_is_the_cause_of_a_hang() -> None:
    """The others wait for one that is gone."""
    found = diagnose([], hang="no answer", stacks="", died=WORKER_KILLED, failed=True)
    assert (found.family, found.cause) == ("memory", "killed")


def record(*ends: ProcessEnd, ready_after_s: float | None = None) -> LaunchRecord:
    return LaunchRecord(id="a", profile="p", started=0.0, process_ends=list(ends), ready_after_s=ready_after_s)


def test_the_first_failure_is_the_first_that_was_not_survived() -> None:
    done = ProcessEnd(pid=1, name="inspection", time=1.0, status=0)
    gone = ProcessEnd(pid=2, name="helper", time=2.0, status=1)
    last = ProcessEnd(pid=11, name="APIServer", time=1000.0, status=1)
    after = msgspec.structs.replace(WORKER_KILLED, aftermath=True, time=1001.0)
    assert first_failure(record(done, gone, WORKER_KILLED, last)) == WORKER_KILLED
    assert first_failure(record(done, gone, last, after)) == last
    assert first_failure(record(WORKER_KILLED, last, ready_after_s=20.0)) == last
    assert first_failure(record(done)) is None


@pytest.mark.parametrize(("pid", "family"), [(9, "config"), (8, "host")])
def test_a_core_that_its_own_server_put_down_is_no_cause(pid: int, family: str) -> None:
    """It ended before the server, whose error was first all the same."""
    log = f"""\
(APIServer pid=5) WARNING 11-26 15:43:32 [utils.py:653] [shutdown] force killing remaining process EngineCore pid {pid}
Traceback (most recent call last):
  File "/opt/bin/vllm", line 9, in <module>
    sys.exit(main())
  File "/opt/vllm/entrypoints/openai/models/serving.py", line 9, in init_static_loras
    raise ValueError(error.message)
ValueError: Loading lora mine failed: No adapter found for /srv/odd
"""
    died = ProcessEnd(pid=9, name="EngineCore", time=1.0, status=-9, line=0, out_of_memory=False)
    assert diagnose(number_lines(log), exit_status=1, failed=True, died=died).family == family
