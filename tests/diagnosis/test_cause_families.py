# ruff: noqa: E501, ISC004 - log lines are as long as they are
"""One line of each cause, as an engine, a library or the system may write it, and its family."""

from __future__ import annotations

import re

import pytest

from appliance.diagnosis.causes import CATALOGUE, FAMILIES
from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.log_text import number_lines
from appliance.diagnosis.own_settings import own_settings
from appliance.diagnosis.searchable import Searchable
from appliance.diagnosis.stuck_processes import PLACES
from appliance.profile.schema import SETTINGS
from appliance.profile.vllm_options import FLAGS, VARIABLES

# (family, cause, line): written for this test; only what a pattern must find is as it really is.
LINES = (
    ("kernel-crash", "native-check", "/src/odd/odd-cuda.cu:77: ODD_ASSERT(rows % 4 == 0 && \"rows\") failed"),
    ("kernel-crash", "native-check", "oddserve: odd.cpp:9: void load(): Assertion `rows == 4' failed."),
    ("arch", "built-for-another-gpu", "Could not start odd: Runtime compute cap 70 is not compatible with compile time compute cap 90"),
    ("abi", "cache-transfer-missing", "RuntimeError: NIXL is not available"),
    ("memory", "gpu-out-of-memory", "odd_alloc_buffer: allocating 77.50 MiB on device 1: cudaMalloc failed: out of memory"),
    ("nccl", "ucx", "[1700000000.123456] [h:7 :0]  odd_ep.c:12 UCX  ERROR odd_2: send failed: Input/output error"),
    ("config", "unknown-argument", "error: invalid argument: --oddity"),
    ("config", "argument-value", "error while handling argument \"--odd-size\": stoi"),
    ("host", "unit-cannot-start", "systemd[1]: odd.service: Main process exited, code=exited, status=203/EXEC"),
    ("host", "container-exited", "dependency failed to start: container odd-1 exited (3)"),
    ("hang", "unit-ran-out", "systemd[1]: odd.service: Failed with result 'timeout'."),
    ("driver", "container-toolkit-missing", "  Warning  FailedCreatePodSandBox  5s  kubelet  no runtime for \"nvidia\" is configured"),
    ("arch", "kernel-not-for-gpu", "RuntimeError: Error in function 'OddRunner' at /opt/flashinfer/oddRunner.cuh:37: Unsupported architecture"),
    ("config", "command-twice", "vllm: error: unrecognized arguments: serve /srv/odd"),
    ("abi", "call-does-not-fit", "TypeError: odd_decode() got an unexpected keyword argument 'even_lens'"),
    ("host", "path-refused", "OSError: [Errno 40] Too many levels of symbolic links: '/srv/odd'"),
    ("host", "program-missing", "  Warning  Failed  5s  kubelet  Error: failed to start container: exec: \"odd\": executable file not found "
     "in $PATH: unknown"),
    ("model-config", "no-config-file", "OSError: Invalid repository ID or local directory specified: '/srv/odd'."),
    ("config", "no-chat-template-file", "ValueError: The supplied chat template string (./odd.jinja) appears path-like, but doesn't exist! "
     "Tried: ./odd.jinja"),
    ("mig", "mig-uuid-not-understood", "ValueError: invalid literal for int() with base 10: 'MIG-00000000-1111'"),
    ("mig", "mig-slice-unknown", "nvidia-container-cli: device error: MIG-00000000-1111: unknown device"),
    ("memory", "oom-killed", "[99.123456] Out of memory: Killed process 4711 (VLLM::EngineCor) total-vm:1kB"),
    ("memory", "cache-too-small", "ValueError: serving one request of max seq len (9000) takes (2.0 GiB KV cache is needed, "
     "larger than the available (1.0 GiB); estimated maximum model length is 4432."),
    ("memory", "gpu-memory-held-by-others", "ValueError: Free memory on device cuda:0 (10.0/40.0 GiB) on startup is less than "
     "desired GPU memory utilization (0.9, 36.0 GiB)."),
    ("memory", "gpu-memory-released-meanwhile", "AssertionError: Error in memory profiling. Initial free memory 54.6 GiB, "
     "current free memory 60.1 GiB. This happens when other processes sharing the same container release GPU memory."),
    ("memory", "gpu-out-of-memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
     "capacity of 23.50 GiB of which 1.25 GiB is free."),
    ("memory", "host-out-of-memory", "OSError: [Errno 12] Cannot allocate memory"),
    ("memory", "killed", "./start.sh: line 7: 42 Killed   vllm serve /m"),
    ("kernel-crash", "illegal-memory-access", "RuntimeError: CUDA error: an illegal memory access was encountered"),
    ("kernel-crash", "segmentation-fault", "Segmentation fault (core dumped)"),
    ("kernel-crash", "gpu-page-fault", "NVRM: Xid (PCI:0000:17:00): 31, pid=1, MMU Fault"),
    ("arch", "no-kernel-image", "RuntimeError: CUDA error: no kernel image is available for execution on the device"),
    ("arch", "shared-memory-of-the-gpu", "triton.OutOfResources: out of resource: shared memory, Required: 200000, Hardware "
     "limit: 101376."),
    ("arch", "cpu-architecture", "exec /usr/bin/vllm: exec format error"),
    ("jit-toolchain", "nvcc-missing", "/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found"),
    ("jit-toolchain", "ninja-missing", "FileNotFoundError: [Errno 2] No such file or directory: 'ninja'"),
    ("jit-toolchain", "python-headers-missing", "/tmp/a.c:1:10: fatal error: Python.h: No such file or directory"),
    ("jit-toolchain", "header-missing", "/tmp/a.cu:1:10: fatal error: cublasLt.h: No such file or directory"),
    ("jit-toolchain", "ptxas-too-old", "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'"),
    ("jit-toolchain", "deepgemm-unusable", "RuntimeError: DeepGEMM backend is not available or outdated."),
    ("jit-toolchain", "indexer-without-deepgemm", "RuntimeError: Sparse Attention Indexer CUDA op requires DeepGEMM support in "
     "the current vLLM environment."),
    ("backend", "chosen-backend-for-experts", "ValueError: FP8 MoE backend 'DEEPGEMM' does not support the deployment "
     "configuration since kernel does not support current device cuda."),
    ("backend", "chosen-backend-for-experts", "ValueError: Unquantized MoE backend FlashInfer CUTLASS does not support the "
     "deployment configuration."),
    ("backend", "chosen-backend-for-experts", "ValueError: moe_backend='deep_gemm' is not supported for unquantized MoE. "
     "Expected one of ['triton']."),
    ("driver", "driver-too-old-for-image", "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.0"),
    ("driver", "container-toolkit-missing", 'docker: could not select device driver "" with capabilities: [[gpu]].'),
    ("driver", "nvml-mismatch", "Failed to initialize NVML: Driver/library version mismatch"),
    ("driver", "fabric-manager", "RuntimeError: Error 802: system not yet initialized"),
    ("driver", "driver-too-old", "ImportError: /x/_C.abi3.so: undefined symbol: cuTensorMapEncodeTiled"),
    ("driver", "gpu-hardware", "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
    ("driver", "gpu-busy", "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
    ("driver", "no-gpu-visible", "RuntimeError: No CUDA GPUs are available"),
    ("nccl", "shared-memory-too-small", "h:1:1 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-x to 9 bytes"),
    ("nccl", "shared-memory-too-small", "RuntimeError: unable to write to file </torch_9_1>: No space left on device (28)"),
    ("config", "tls-key-mismatch", "ssl.SSLError: [X509: KEY_VALUES_MISMATCH] key values mismatch (_ssl.c:9)"),
    ("config", "parser-name", "KeyError: 'invalid tool call parser: odd (chose from { even,uneven })'"),
    ("config", "parser-name", "KeyError: \"Reasoning parser 'odd' not found. Available parsers: even, uneven\""),
    ("nccl", "peer-access", "RuntimeError: CUDA error: peer access is not supported between these two devices"),
    ("nccl", "nccl-error", "RuntimeError: NCCL error: unhandled system error"),
    ("port", "address-in-use", "OSError: [Errno 98] Address already in use"),
    ("nccl", "custom-all-reduce", "Failed: Cuda error /w/csrc/custom_all_reduce.cuh:9 'invalid argument'"),
    ("config", "workers-beyond-nodes", "AssertionError: Not enough allowed NUMA nodes to bind threads of 4 local Workers. Allowed NUMA nodes are [0, 1]. Odd."),
    ("multi-node", "peer-silent", "RuntimeError: [x.cc:8] Timed out waiting 9000ms for recv operation to complete"),
    ("config", "service-variable", "ValueError: invalid literal for int() with base 10: 'tcp://10.0.0.9:8000'"),
    ("abi", "tokenizer-of-another-release", "AttributeError: OddTokenizer has no attribute tokens_extended"),
    ("permission", "cache-not-writable", "PermissionError: [Errno 13] Permission denied: '/.triton'"),
    ("permission", "permission-denied", "PermissionError: [Errno 13] Permission denied: '/models/x/config.json'"),
    ("host", "disk-full", "OSError: [Errno 28] No space left on device"),
    ("host", "read-only-file-system", "OSError: [Errno 30] Read-only file system: '/state/x'"),
    ("host", "storage-fault", "OSError: [Errno 5] Input/output error: '/mnt/x'"),
    ("multi-node", "not-enough-gpus-in-cluster", "ValueError: The number of required GPUs exceeds the total number of available GPUs"),
    ("abi", "undefined-symbol", "ImportError: /x/_C.so: undefined symbol: _ZN3c104cuda"),
    ("abi", "glibc-too-old", "ImportError: /lib/libc.so.6: version `GLIBC_2.34' not found (required by /x.so)"),
    ("abi", "package-missing", "ModuleNotFoundError: No module named 'zmq'"),
    ("config", "lora-off", "RuntimeError: LoRA is not enabled. Use --enable-lora to enable LoRA."),
    ("config", "python-variable", "Fatal Python error: odd_init: PYTHONODDITY must be odd"),
    ("abi", "python-without-library", "ModuleNotFoundError: No module named 'encodings'"),
    ("abi", "library-damaged", "ImportError: /x/libodd.so.6: file too short"),
    ("host", "program-missing", "subprocess.CalledProcessError: Command 'odd --even=1' returned non-zero exit status 127."),
    ("model-config", "kv-heads-not-divisible", "AssertionError: num_heads (9) is not divisible by num_kv_heads (4)"),
    ("config", "lora-rank", "ValueError: LoRA rank 99 is greater than max_lora_rank 7."),
    ("abi", "code-of-another-release", "RuntimeError: Current vLLM config is not set."),
    ("abi", "versions-differ", "RuntimeError: odd-kernels version (0.6.1) does not match odd version (0.5.3)."),
    ("port", "ipc-folder-missing", "zmq.error.ZMQError: No such file or directory for ipc path \"/run/odd/3f\"."),
    ("offline", "hub-offline", "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://huggingface.co/a/b: offline mode "
     "is enabled."),
    ("offline", "model-path-missing", "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'a': '/models/x'."),
    ("offline", "hub-gated", "OSError: You are trying to access a gated repo."),
    ("weights", "safetensors-damaged", "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge"),
    ("weights", "weight-missing", "KeyError: 'model.layers.3.mlp.up_proj.weight'"),
    ("weights", "no-weights", "RuntimeError: Cannot find any model weights with `/m`"),
    ("weights", "cache-scale", "ValueError: model.layers.3.self_attn.k_scale is -1.0; it must be a positive number."),
    ("model-config", "heads-not-divisible", "ValueError: Total number of attention heads (28) must be divisible by tensor parallel "
     "size (8)."),
    ("model-config", "architecture-not-supported", "ValueError: Model architectures ['Foo'] are not supported for now."),
    ("model-config", "context-too-long", "ValueError: User-specified max_model_len (9000) is greater than the derived max_model_len "
     "(max_position_embeddings=4096)."),
    ("model-config", "tokenizer", "OSError: Can't load tokenizer for '/m'."),
    ("quant-dtype", "bfloat16-not-supported", "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0."),
    ("quant-dtype", "dtype-not-on-this-processor", "RuntimeError: mkldnn_reorder_linear_weight: bf16 path needs the cpu "
     "support avx_ne_convert or avx512bw, avx512vl and avx512dq"),
    ("quant-dtype", "quantised-shape-not-divisible", "ValueError: The output_size of gate's weight = 192 is not divisible by weight "
     "quantization block_n = 128."),
    ("config", "unknown-argument", "vllm: error: unrecognized arguments: --frobnicate 3"),
    ("config", "argument-value", "api: error: argument --dtype: invalid choice: 'bf17' (choose from 'auto', 'half')"),
    ("config", "more-gpus-than-there-are", "ValueError: World size (8) is larger than the number of available GPUs (2) in this node."),
    ("backend", "no-attention-backend", "ValueError: No valid attention backend found for cuda with head_size 80"),
    ("compile", "compile-cache", "AssertionError: failed to get the hash of the compiled graph"),
    ("hang", "rank-hangs", "RankHungError: Rank 1 (pid 4711) of the model hangs in odd (odd/even.py:7): the others have waited for 1.8 s."),
    ("hang", "gpu-does-not-finish", "RanksWaitError: No rank of the model computes, and for 30 s rank 0 (pid 4711) and rank 1 (pid 4712) "
     "waited in synchronize (torch/cuda/streams.py:226) for a GPU, or for other ranks."),
    ("hang", "watchdog", "[2025-11-20 10:00:00 TP0] Watchdog timeout (forward_ct=2)"),
    ("crash-loop", "restart-loop", "vllm.service: Scheduled restart job, restart counter is at 17."),
)  # fmt: skip
PREFIXES = (
    "",
    "(EngineCore_DP0 pid=77) ERROR 11-20 10:02:11 [core.py:708] ",
    "(Worker_TP1 pid=92) ",
    "ERROR 05-12 10:11:12 core.py:396] ",
    "vllm-1  | ",
    "2025-11-20T10:02:11.123456789Z ",
    "2025-11-20T10:02:11.123456789Z stderr F ",
    "Nov 20 10:02:11 spark vllm[4711]: ",
    "2025-11-20 10:02:11.123 | ERROR    | app.engine:run:12 - ",
    "\x1b[1;36m(APIServer pid=1)\x1b[0;0m ",
    "[rank0]: ",
)


@pytest.mark.parametrize(("family", "cause", "line"), LINES, ids=[f"{row[0]}-{row[1]}" for row in LINES])
def test_a_line_is_reported_by_its_cause(family: str, cause: str, line: str) -> None:
    """With a summary without open places and a fix that can be followed."""
    found = diagnose(number_lines(f"INFO starting\n{line}\n"))
    assert (found.family, found.cause) == (family, cause)
    assert not any(open_ in found.summary for open_ in ("{", "?", "  "))
    assert found.fix is not None
    assert found.fix.text
    assert [evidence.number for evidence in found.evidence] == [2]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_what_stands_before_a_line_changes_nothing(prefix: str) -> None:
    """Containers, journals, process tags, loggers and colours are read through, and are no part of the evidence."""
    for family, _, line in LINES:
        found = diagnose(number_lines(f"{prefix}starting\n{prefix}{line}\n"))
        assert found.family == family, (prefix, line)
        assert not found.evidence[-1].text.startswith(prefix.strip() or "\0")


def test_every_family_has_a_line() -> None:
    """Those of the README of the shared logs, and no other."""
    assert {row[0] for row in LINES} == set(FAMILIES)
    assert len(FAMILIES) == 21


OWN = (
    "(APIServer pid=1) INFO 11-20 10:02:11 [utils.py:1] non-default args: {'max_model_len': 32000, \
'gpu_memory_utilization': 0.85, 'tensor_parallel_size': 4, 'max_num_seqs': 256}",
    "[2025-11-20 10:02:11] server_args=ServerArgs(context_length=32000, mem_fraction_static=0.85, tp_size=4, \
max_running_requests=256, grpc=None)",
    "+ vllm serve /m --max-model-len 32000 --gpu-memory-utilization=0.85 -tp 4 --max-num-seqs 256",
)


@pytest.mark.parametrize("line", OWN)
def test_what_a_launch_was_set_to_is_read_from_what_it_prints(line: str) -> None:
    """In the spelling of each engine, and of a shell."""
    assert own_settings(Searchable(number_lines(line)), None) == {
        "max-model-len": "32000",
        "gpu-memory-utilization": "0.85",
        "tensor-parallel-size": "4",
        "max-num-seqs": "256",
    }


def test_no_number_of_ours_is_patched_in() -> None:
    """It could raise what it is meant to lower: each comes from the log or the profile."""
    patches = [cause.patch or {} for cause in CATALOGUE]
    numbers = [patch for patch in patches for value in patch.values() if type(value) in (int, float)]
    assert numbers == []


FIXES = [cause.patch for cause in CATALOGUE] + [place.fix.patch for place in PLACES]


@pytest.mark.parametrize("patch", [patch for patch in FIXES if patch], ids=" ".join)
def test_a_patch_can_be_applied(patch: dict[str, object]) -> None:
    """Every key is one of the schema's, a group of them, or on the lists of what vLLM may be handed."""
    allowed = {setting.key for setting in SETTINGS} | {"backends", "vllm.environment"}
    allowed |= {f"vllm.extra-args.{flag.name}" for flag in FLAGS}
    allowed |= {f"vllm.environment.{variable.name}" for variable in VARIABLES}
    assert set(patch) <= allowed


@pytest.mark.parametrize(
    ("cause", "patch"),
    [
        ("cache-too-small", {"max-model-len": 4432}),
        ("gpu-memory-held-by-others", {"gpu-memory-utilization": 0.24}),
        ("heads-not-divisible", {"tensor-parallel-size": 7}),
        ("context-too-long", {"max-model-len": 4096}),
        ("more-gpus-than-there-are", {"tensor-parallel-size": 2}),
        ("bfloat16-not-supported", {"dtype": "float16"}),
    ],
)
def test_a_patch_takes_its_value_from_the_log(cause: str, patch: dict[str, object]) -> None:
    """What fits by the engine's own figures."""
    (line,) = [row[2] for row in LINES if row[1] == cause]
    found = diagnose(number_lines(line))
    assert found.fix is not None
    assert found.fix.patch == patch


@pytest.mark.parametrize(("engine", "cast"), [("native", True), ("vllm", False), (None, False)])
def test_only_an_engine_that_can_run_from_a_cast_is_advised_to(engine: str | None, cast: bool) -> None:
    lines = number_lines("RuntimeError: Ninja build failed: ninja -v: returned non-zero exit status 1")
    profile = {"schema": 1, "name": "m", "engine": engine} if engine else None
    found = diagnose(lines, exit_status=1, profile=profile)
    assert (found.cause, found.fix is not None) == ("build-failed", True)
    assert (found.fix is not None and "cast" in found.fix.text) is cast


LOOKING = (
    "cat", "date", "df", "dmesg", "docker", "find", "free", "getent", "hostname", "ibv_devinfo", "id", "ingot", "iostat",
    "ip", "journalctl", "kubectl", "last", "ldconfig", "ls", "mount", "nvcc", "nvidia-container-cli", "nvidia-smi",
    "openssl", "ps", "py-spy", "python", "python3", "ray", "sha256sum", "ss", "timedatectl", "ucx_info", "ulimit",
    "uname", "which", "gcc", "echo",
)  # fmt: skip
CHANGING = ("pip install", "nvidia-smi -c", "-delete", "create", "65536", " > ", "rm ")


@pytest.mark.parametrize("look", sorted({cause.look for cause in CATALOGUE if cause.look}))
def test_what_only_looks_changes_nothing(look: str) -> None:
    assert {part.split()[0] for part in re.sub(r"'.*?'", "", look).split("; ")} <= set(LOOKING)
    assert [word for word in CHANGING if word in look] == []


@pytest.mark.parametrize("command", sorted({cause.command for cause in CATALOGUE if cause.command}))
def test_what_mends_does_not_only_look(command: str) -> None:
    words = command.split()
    assert words[0] not in set(LOOKING) - {"ingot", "nvidia-smi", "python", "ulimit"}


def test_no_fix_is_a_line_for_somebodys_shell() -> None:
    """A variable of the engine's environment belongs into the profile."""
    fixes = [cause.command or "" for cause in CATALOGUE] + [place.fix.command or "" for place in PLACES]
    assert [command for command in fixes if command.startswith(("export ", "set ", "unset "))] == []


def test_what_only_makes_the_log_longer_is_no_patch() -> None:
    keys = {key for cause in CATALOGUE for key in cause.patch or {}}
    assert [key for key in keys if "DEBUG" in key or "LOGGING" in key or "BLOCKING" in key] == []


@pytest.mark.parametrize(("asked", "patch"), [(1 << 30, {"max-model-len": 2048}), (1 << 50, None)])
def test_what_no_machine_has_is_not_had_by_a_shorter_context(asked: int, patch: dict[str, int] | None) -> None:
    error = f"RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate {asked} bytes."
    profile = {"schema": 1, "name": "m", "model": {"path": "m"}, "max-model-len": 4096}
    found = diagnose(number_lines(error), failed=True, profile=profile)
    assert (found.cause, found.fix is not None) == ("host-out-of-memory", True)
    assert found.fix is not None
    assert found.fix.patch == patch
