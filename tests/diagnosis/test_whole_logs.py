# ruff: noqa: E501 - log lines are as long as they are
"""Whole logs: whose exception counts, what a healthy start may hold, and what can be known without an exception."""

from __future__ import annotations

import signal

import pytest

from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.first_exception import exceptions_in
from appliance.diagnosis.log_text import number_lines
from appliance.protocol import Diagnosis, Outcome
from tests.diagnosis import made_up_logs as logs


def told(text: str, **known) -> Diagnosis:
    return diagnose(number_lines(text), **known)


@pytest.mark.parametrize(
    ("log", "outcome"),
    [
        (logs.HEALTHY_VLLM, Outcome.SERVES), (logs.HEALTHY_SGLANG, Outcome.SERVES), ("", Outcome.UNCLEAR),
        ("\n\n", Outcome.UNCLEAR), ("Loading: 100%\n", Outcome.UNCLEAR),
    ],
)  # fmt: skip
def test_a_healthy_log_shows_no_failure(log: str, outcome: Outcome) -> None:
    """Tracebacks that somebody survived, advisories, argument dumps and a request's error are none."""
    found = told(log)
    assert (found.outcome, found.family, found.cause, found.fix) == (outcome, None, None, None)
    assert found.summary


@pytest.mark.parametrize("cut", [*range(3, 14), *range(17, 22)])
def test_a_healthy_log_is_so_wherever_it_is_cut(cut: int) -> None:
    """It need not have come to its end; only that a process waits again and again is worth saying."""
    assert told("\n".join(logs.HEALTHY_VLLM.split("\n")[:cut])).family in (None, "hang")


def test_the_workers_own_exception_counts() -> None:
    """Not the one of the rank that lost its neighbour, nor those of the processes that only point at it."""
    found = told(logs.VLLM_WORKERS)
    assert (found.family, found.cause) == ("memory", "gpu-out-of-memory")
    assert [line.number for line in found.evidence] == [6, 9]
    assert len(exceptions_in(number_lines(logs.VLLM_WORKERS))) == 5


def test_of_a_chain_the_first_link_that_is_known_counts() -> None:
    """The last one may say nothing of it, and the first may be only a key that was not found."""
    assert told(logs.CHAIN).cause == "disk-full"
    text = (
        "Traceback (most recent call last):\n  File \"/x/configuration_auto.py\", line 1, in f\nKeyError: 'foo4'\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "/usr/bin/vllm", line 8, in <module>\n'
        "ValueError: The checkpoint has model type `foo4` but Transformers does not recognize this architecture.\n"
    )
    assert told(text).cause == "architecture-not-supported"


def test_a_schedulers_exception_stands_without_its_prefix() -> None:
    """SGLang writes its stamp before the first line only."""
    found = told(logs.SGLANG_SCHEDULER)
    assert found.cause == "weights-out-of-memory"
    assert found.evidence[-1].text.startswith("torch.OutOfMemoryError")


def test_a_crash_after_it_was_ready_is_reported() -> None:
    """By the words with which the engine itself says that it ends."""
    crash = logs.VLLM_WORKERS.replace("failed to start", "encountered a fatal error")
    assert told(logs.HEALTHY_VLLM + crash).family == "memory"
    assert told(logs.VLLM_WORKERS + logs.HEALTHY_VLLM).family is None, "a later start went well"


def test_argument_dumps_and_echoes_are_never_the_cause() -> None:
    """Whatever stands in them."""
    lines = (
        "ERROR 11-20 10:02:11 [dump_input.py:69] Dumping input data for V1 LLM engine with config: note='CUDA out of memory'",
        "INFO 11-20 10:02:11 [x.py:1] args: Namespace(model='/m', note='RuntimeError: NCCL error')",
        "[2025-11-20 10:02:11] server_args=ServerArgs(note='OSError: [Errno 98] Address already in use')",
        "$ docker run -e NOTE='ValueError: Permission denied' vllm",
    )
    assert told("\n".join(lines)).family is None


def test_what_only_a_warning_tells_is_reported_where_nothing_else_does() -> None:
    """And not where the engine serves nevertheless."""
    warning = (
        "/x/torch/cuda/__init__.py:9: UserWarning: CUDA initialization: The NVIDIA driver on your system is too old"
    )
    assert told(f"INFO starting\n{warning}\n").cause == "driver-too-old"
    assert told(f"{warning}\n{logs.HEALTHY_VLLM}").family is None


def test_a_compilers_own_words_are_better_than_that_it_failed() -> None:
    """The exception only says which command returned what."""
    log = (
        "/tmp/a.c:9:10: fatal error: Python.h: No such file or directory\ncompilation terminated.\n"
        'Traceback (most recent call last):\n  File "/x/triton/runtime/build.py", line 1, in _build\n'
        "subprocess.CalledProcessError: Command '['/usr/bin/gcc', 'a.c']' returned non-zero exit status 1.\n"
    )
    found = told(log)
    assert found.cause == "python-headers-missing"
    assert found.evidence[0].number == 1


def test_a_restart_loop_is_counted_and_its_cause_reported() -> None:
    """Where the log knows it; else that it loops is all there is to say."""
    loop = "Nov 20 10:00:05 h systemd[1]: vllm.service: Scheduled restart job, restart counter is at 14.\n"
    assert told(loop).cause == "restart-loop"
    found = told(logs.VLLM_ARGUMENT + loop)
    assert found.family == "model-config"
    assert "14 times" in found.summary


@pytest.mark.parametrize(
    ("status", "cause"),
    [(-signal.SIGKILL, "killed"), (137, "killed"), (139, "segmentation-fault"), (132, "illegal-instruction"),
     (135, "bus-error"), (134, "aborted"), (143, "ended-on-request"), (-signal.SIGSEGV, "segmentation-fault")],
)  # fmt: skip
def test_a_containers_status_is_a_signal_too(status: int, cause: str) -> None:
    """128 and the signal's number."""
    found = told("INFO all is well\n", exit_status=status)
    assert found.cause == cause


def test_who_killed_it_is_said_as_far_as_it_is_known() -> None:
    """With the kernel's own word it is certain; without, a person may have done it."""
    certain = told("INFO all is well\n", exit_status=-9, killed_by_kernel="Out of memory: Killed process 7 (python)")
    assert (certain.family, certain.cause) == ("memory", "oom-killed")
    assert "Killed process 7" in certain.summary
    open_ = told("INFO all is well\n", exit_status=-9)
    assert (open_.family, open_.cause) == ("memory", "killed")
    assert "SIGKILL" in open_.summary


STACKS = {
    "nccl": 'Process 7: vllm\nThread 7 (idle): "MainThread"\n    all_reduce (torch/distributed/distributed_c10d.py:2501)\n',
    "jit-toolchain": 'Process 8: vllm\nThread 8 (active): "MainThread"\n    compile (triton/compiler/compiler.py:300)\n',
    "compile": 'Process 8: vllm\nThread 8 (active): "MainThread"\n    run (torch/_inductor/graph.py:300)\n',
    "host": 'Process 8: vllm\nThread 8 (idle): "MainThread"\n    safetensors_weights_iterator (vllm/weight_utils.py:3)\n',
    "offline": 'Process 8: vllm\nThread 8 (idle): "MainThread"\n    send (urllib3/connectionpool.py:3)\n',
    "multi-node": 'Process 8: vllm\nThread 8 (idle): "MainThread"\n    get (ray/_private/worker.py:3)\n',
    "hang": 'Process 8: vllm\nThread 8 (idle): "MainThread"\n    synchronize (torch/cuda/streams.py:3)\n',
}
WAITS = 'Process 1: vllm\nThread 1 (idle): "MainThread"\n    acquire_read (vllm/shm_broadcast.py:500)\n'


@pytest.mark.parametrize("family", STACKS)
def test_a_hang_is_reported_by_where_the_processes_are(family: str) -> None:
    """The one that works on something is the cause of those that wait for it."""
    found = told("INFO loading\n", hang="no heartbeat for 30 s", stacks=WAITS + STACKS[family])
    assert found.family == family
    assert "no heartbeat for 30 s" in found.summary
    assert "Process 7" in found.summary or "Process 8" in found.summary


def test_a_hang_without_stacks_and_one_after_an_exception() -> None:
    """Without them it is a hang; an engine that failed and did not exit is recognised by its exception."""
    assert told("INFO loading\n", hang="silence").family == "hang"
    assert told("INFO loading\n", hang="silence", stacks=WAITS).cause == "waits-for-worker"
    assert told(logs.VLLM_WORKERS, hang="silence", stacks=WAITS).family == "memory"


def test_waiting_to_the_end_of_the_log_is_a_hang() -> None:
    """For a worker, or for Ray; once is none, and what goes on is none."""
    wait = "(EngineCore_DP0 pid=7) INFO 11-20 10:0{}:00 [shm.py:9] No available shared memory broadcast block found in 60 s\n"
    assert told("".join(wait.format(n) for n in range(4))).cause == "waits-for-worker"
    assert told(wait.format(1)).family is None
    ray = "INFO 11-20 10:0{}:00 [ray_utils.py:9] Waiting for creating a placement group of specs for 10 seconds.\n"
    assert told("".join(ray.format(n) for n in range(3))).family == "multi-node"


def test_an_unknown_exception_is_shown_with_the_frames_that_matter() -> None:
    """The engine's own, few, and not those of the libraries between them."""
    log = (
        "(EngineCore pid=7) ERROR 11-20 10:02:11 [core.py:12] EngineCore failed to start.\n"
        "(EngineCore pid=7) ERROR 11-20 10:02:11 [core.py:12] Traceback (most recent call last):\n"
    )
    places = ["vllm/v1/engine/core.py", "torch/nn/modules/module.py", "vllm/models/a.py", "torch/nn/modules/module.py"]
    for place in [*places, "vllm/models/b.py", "torch/_ops.py"]:
        log += f'(EngineCore pid=7) ERROR 11-20 10:02:11 [core.py:12]   File "/opt/{place}", line 5, in f\n'
        log += "(EngineCore pid=7) ERROR 11-20 10:02:11 [core.py:12]     f()\n"
    log += "(EngineCore pid=7) ERROR 11-20 10:02:11 [core.py:12] foo.OddFailure: the frobnicator is empty\n"
    found = told(log)
    assert (found.family, found.cause) == (None, None)
    assert "the frobnicator is empty" in found.summary
    assert [line.number for line in found.evidence] == [3, 7, 11, 15]


def test_of_an_unknown_exception_the_words_hint_at_the_family() -> None:
    """And the diagnosis says that it is unknown."""
    found = told('Traceback (most recent call last):\n  File "/x.py", line 1, in f\nOddError: tokenizer went purple\n')
    assert (found.family, found.cause) == ("model-config", "unrecognised")
    assert "tokenizer went purple" in found.summary


def test_a_prefix_that_nobody_knows_is_read_through() -> None:
    """The first line shows it, and its numbers may change."""
    lines = ["Traceback (most recent call last):", '  File "/usr/bin/vllm", line 8, in <module>',
             "OSError: [Errno 28] No space left on device"]  # fmt: skip
    text = "\n".join(f"#7 1.{number} {line}" for number, line in enumerate(lines))
    found = told(text)
    assert found.cause == "disk-full"
    assert [line.number for line in found.evidence] == [2, 3]


def test_docker_own_json_lines_are_unwrapped() -> None:
    """With the number of the line in the file."""
    text = "".join(
        '{"log":"' + line.replace('"', '\\"') + '\\n","stream":"stderr","time":"2025-11-20T10:00:00Z"}\n'
        for line in logs.VLLM_ARGUMENT.split("\n")
    )
    found = told(text)
    assert found.cause == "context-too-long"
    assert [line.number for line in found.evidence] == [4, 6, 7]


@pytest.mark.parametrize(
    "line",
    [
        "ERROR 11-20 10:02:11 [kernels.py:34] Failed to import some kernels. Error: No module named 'fast_kernels'",
        "ERROR 11-20 10:02:11 [fa.py:57] FA3 is only supported on devices with compute capability >= 9",
        "host:1:1 [0] NCCL WARN NET/OFI Failed to initialize a protocol",
        "(EngineCore pid=7) [2025-11-20 10:02:11] CRITICAL: RuntimeError: CUDA error: out of memory",
    ],
)
def test_an_error_after_which_the_process_goes_on_is_none(line: str) -> None:
    """Its next line says so; where that is of its end, or somebody knows that it failed, the error counts."""
    key = "(EngineCore pid=7) " if line.startswith("(") else ""
    went_on = f"{line}\n{key}INFO 11-20 10:02:12 [core.py:9] Loading weights\n"
    assert told(went_on).family is None
    assert told(went_on, exit_status=1).family is not None
    assert told(f"{line}\n{key}INFO 11-20 10:02:12 [core.py:9] Shutting down\n").family is not None


@pytest.mark.parametrize("prefix", ["> ", "│ ", "2025-11-20 10:02:11,123 - __main__ - INFO - ", "[spark] | "])
def test_who_passes_a_log_on_changes_nothing(prefix: str) -> None:
    """A mail, a terminal's pane, a launcher that logs what its child says."""
    found = told("\n".join(prefix + line for line in logs.SGLANG_SCHEDULER.split("\n")))
    assert found.cause == "weights-out-of-memory"
    assert [line.number for line in found.evidence] == [6, 8]
