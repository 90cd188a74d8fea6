# ruff: noqa: E501 - log lines are as long as they are
"""Programs around an engine, and engines that are not written in Python: what they say when something ends."""

from __future__ import annotations

import json

import pytest

from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.log_text import number_lines
from appliance.protocol import Diagnosis


def told(text: str, **known: object) -> Diagnosis:
    return diagnose(number_lines(text), **known)  # type: ignore[arg-type]


LINES = (
    ("nccl", "nccl-error", "[11/20/2025-10:02:11] [TRT-LLM] [RANK 1] [E] no executor on rank 1: NCCL error 'invalid usage'"),
    ("kernel-crash", "launch-failure", "[TensorRT-LLM][ERROR] Assertion failed: Error occurred when running GEMM! (runner.cpp:18)"),
    ("abi", "engine-file-of-other-version", "E1120 10:02:11.123456 29 model_lifecycle.cc:638] no 'llm': Failed to deserialize cuda engine"),
    ("multi-node", "rendezvous-failed", "[rank1]:[E1120 10:02:11.123456789 ProcessGroupGloo.cpp:145] Gloo connectFullMesh failed with no error"),
    ("kernel-crash", "illegal-instruction", "2025-11-20T10:02:11.1Z ERROR manager: launcher: Shard process was ended with signal 4 rank=0"),
    ("kernel-crash", "segmentation-fault", "[node-1:45435:0:45788] Caught signal 11 (address not mapped to object)"),
    ("kernel-crash", "bus-error", "(RayWorker pid=35) *** SIGBUS received at time=1692931519 on cpu 3 ***"),
    ("mig", "mig-slice-unknown", "panic: a device with migEnabled=true is wrong: No MIG devices associated with /dev/nvidia0"),
    ("driver", "gpu-hardware", "[99.123456] NVRM: Xid (PCI:0000:01:00): 8, pid=9, name=python3, channel 0x8"),
    ("driver", "container-toolkit-failed", "nvidia-container-cli: mount error: file creation failed: /merged/usr/lib/libcuda.so.1: file exists"),
    ("driver", "cdi-description", "Error: setting up CDI devices: failed to inject devices: failed to stat CDI host device /dev/dri/x"),
    ("driver", "no-free-gpu-on-any-node", "  Warning  FailedScheduling  4s  default-scheduler  0/2 nodes are available: 2 Insufficient nvidia.com/gpu."),
    ("driver", "jetson-libraries", "NvRmMemInitNvmap failed with Permission"),
    ("hang", "probe-ran-out", "  Normal   Killing   25m   kubelet   Container vllm failed liveness probe, will be restarted"),
    ("memory", "driver-out-of-memory", "NVRM: nvCheckOk: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x51) returned from alloc()"),
    ("memory", "gpu-out-of-memory", 'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "a.cpp":8'),
    ("memory", "host-out-of-memory", "ImportError: libtorch_cpu.so: failed to map segment from shared object"),
    ("memory", "host-out-of-memory", "OpenBLAS error: Memory allocation still failed after 10 retries, giving up."),
    ("permission", "mounted-noexec", "ImportError: /tmp/x.so: failed to map segment from shared object: Operation not permitted"),
    ("nccl", "nvshmem", "/src/nvshmem/modules/transport/ibgda/ibgda.cpp:22: NULL value Unable to create handle."),
    ("nccl", "peer-not-reached", "h:1:1 [0] misc/socket.cc:4 NCCL WARN socketStart: Connect to 169.254.20.10<43369> failed : refused"),
    ("arch", "gpu-too-old", "NotImplementedError: No compiled scaled_mm for CUDA device capability: 75"),
    ("jit-toolchain", "ptxas-too-old", "ptxas a.ptx, line 6; error : Feature '.tile::gather4' not supported on .target 'sm_120a'"),
    ("jit-toolchain", "deepgemm-unusable", "RuntimeError: Failed: Assertion error csrc/jit_kernels/impls/layout.hpp:13 'mn % 4 == 0'"),
    ("backend", "cache-transfer", "nixl._bindings.nixlBackendError: NIXL_ERR_BACKEND"),
    ("backend", "backend-not-available", "RuntimeError: Error in function 'run' at trtllm/fmha.cuh:21: Missing TRTLLM-GEN kernel (decode)"),
    ("compile", "compile-failed", "TypeError: BackendCompilerFailed.__init__() missing 1 required positional argument: 'inner'"),
    ("host", "no-pinned-memory", "RuntimeError: UVA is not available"),
    ("config", "argument-value", "ValueError: Load format `quick` is not supported, choose another"),
    ("config", "argument-value", "vllm serve: error: argument --compilation-config/-cc: 1 validation error for CompilationConfig"),
    ("model-config", "config-not-json", "[json.exception.parse_error.101] Error: parse error at line 1: unexpected end of input"),
    ("model-config", "tokenizer", "OSError: Found 0 files. Make sure that a Mistral tokenizer is present in ['x.gguf']."),
    ("model-config", "architecture-not-supported", "ValidationError: The checkpoint has model type `unheard_of` but Transformers does not recognize this architecture. You can update Transformers with `pip install --upgrade`; please upgrade transformers"),
    ("offline", "vocabulary-download", "Failed to load Harmony encoding: error downloading or loading vocab file"),
)  # fmt: skip


@pytest.mark.parametrize(("family", "cause", "line"), LINES, ids=[f"{row[0]}-{row[1]}" for row in LINES])
def test_each_voice_is_heard(family: str, cause: str, line: str) -> None:
    """Whatever logger or program it is of."""
    found = told(line)
    assert (found.family, found.cause) == (family, cause)


def test_an_object_keeps_its_level() -> None:
    """A logger that writes JSON marks an error as such, and what it marks as quiet counts as that."""
    lines = {level: json.dumps({"level": level, "msg": "connectFullMesh failed"}) for level in ("error", "info")}
    assert told(lines["error"]).family == "multi-node"
    assert told(lines["info"]).family is None


WARNED = "h:1:1 [0] transport/nvls.cc:157 NCCL WARN Cuda failure 1 'invalid argument'\n"


def test_advice_at_the_end_of_a_healthy_log_is_none() -> None:
    """NCCL warns of what it then does without; where its process ends, the warning tells why."""
    assert told("INFO 11-20 10:02:11 [core.py:9] loading\n" + WARNED * 2).family is None
    assert told(WARNED, exit_status=1).cause == "nvls-or-infiniband"
    assert told(WARNED + "h:1:1 [0] NCCL INFO init.cc:1540 -> 1\n").cause == "nvls-or-infiniband"
    assert told(WARNED + "RuntimeError: NCCL error: unhandled cuda error\n").cause == "nvls-or-infiniband"
    assert told(WARNED + "INFO 11-20 10:02:12 [core.py:9] Shutting down\n").cause == "nvls-or-infiniband"


@pytest.mark.parametrize(
    "line", ["mkdir: cannot create '/root/.cache': Permission denied", "nvidia-smi: command not found"]
)
def test_a_line_that_nobody_signed_is_none_where_all_go_on(line: str) -> None:
    """Scripts around an engine complain of what it does without."""
    after = "(EngineCore pid=7) INFO 11-20 10:02:12 [core.py:9] Loading weights\n"
    assert told(f"{line}\n").family is not None
    assert told(f"{line}\n{after}").family is None
    assert told(f"{line}\n{after}(APIServer pid=1) ERROR 11-20 10:02:13 [api.py:9] gone\n").family is not None


@pytest.mark.parametrize(
    "line",
    [
        "E1120 10:02:11.123456 29 lifecycle.cc:638] failed to load 'llm' version 1: Internal: it is odd",
        "panic: the thing went wrong",
        "(EngineCore pid=7) ERROR 11-20 10:02:11 [core.py:9] EngineCore hit an exception: Trace",
    ],
)
def test_who_gives_up_without_an_exception_is_believed(line: str) -> None:
    """Nothing is known of it but its words, which are shown; nothing where the same process goes on."""
    found = told(line)
    assert found.fix is not None
    assert found.evidence[0].number == 1
    key = "(EngineCore pid=7) " if line.startswith("(") else ""
    assert told(f"{line}\n{key}INFO 11-20 10:02:12 [core.py:9] loading\n").fix is None


def test_a_callback_that_an_engine_dies_of_is_none_that_it_survives() -> None:
    """Python says the same before both."""
    text = 'Exception in callback {}\nTraceback (most recent call last):\n  File "/opt/vllm/a.py", line 5, in x\nAssertionError\n'
    assert told(text.format("functools.partial(<function _log_task_completion at 0x1>)")).fix is not None
    assert told(text.format("_ProactorTransport._call_connection_lost()")).fix is None


def test_another_engine_is_advised_only_where_one_failed_that_is_not_it() -> None:
    """The words are vLLM's own as well."""
    text = "ValueError: Model architectures ['Foo'] are not supported for now."
    patches = {engine: told(text, profile={"engine": engine}).fix for engine in ("native", "vllm")}
    assert patches["native"] is not None
    assert patches["native"].patch == {"engine": "vllm"}
    assert patches["vllm"] is not None
    assert patches["vllm"].patch is None


def test_a_traceback_after_which_its_process_goes_on_is_none() -> None:
    """Though a logger marked it as an error; where the next word is of an end, it counts."""
    head = "(Worker_TP0 pid=9) {} 11-20 10:02:11 [cache.py:9] "
    lines = (
        "no tuned kernels",
        "Traceback (most recent call last):",
        '  File "/opt/vllm/a.py", line 5, in x',
        "OSError: [Errno 28] No space left on device",
    )
    caught = "".join(f"{head.format('ERROR')}{line}\n" for line in lines)
    assert told(caught + head.format("INFO") + "Loading weights took 3 s\n").family is None
    assert told(caught + head.format("INFO") + "Parent process exited, terminating\n").family == "host"
    assert told(caught).family == "host"


def test_the_reason_of_a_loop_is_better_than_the_loop() -> None:
    """Though only a warning tells it."""
    loop = "vllm-0   0/1   CrashLoopBackOff   18 (87s ago)   87m\n"
    found = told(
        loop + "INFO 11-20 10:02:11 [__init__.py:1] No platform detected, vLLM is running on UnspecifiedPlatform\n"
    )
    assert found.family == "driver"
    assert "18 times" in found.summary
    assert told(loop).family == "crash-loop"
