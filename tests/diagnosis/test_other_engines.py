# ruff: noqa: E501, ISC004 - log lines are as long as they are
"""Engines, launchers and drivers that write no Python tracebacks: which of their lines is decisive, and of what it is."""

from __future__ import annotations

import pytest

from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.log_text import number_lines
from appliance.protocol import Diagnosis, Outcome


def told(text: str) -> Diagnosis:
    return diagnose(number_lines(text))


FAILED = {
    "logfmt, with its error beside it": (
        'time=2026-02-03T10:00:00.1+01:00 level=INFO source=a.go:1 msg="loads"\n'
        'time=2026-02-03T10:00:01.1+01:00 level=ERROR source=b.go:2 msg="error loading odd server" error="runner ended: error loading model: missing tensor \'blk.7.odd\'\\nmore of it"\n'
        'time=2026-02-03T10:00:01.2+01:00 level=DEBUG source=b.go:2 msg="looks for a GPU"',
        "weights", "blk.7.odd",
    ),
    "logfmt in a journal": (
        'Feb 03 10:00:00 gpu1 odd[7]: time=2026-02-03T10:00:01Z level=fatal msg="cannot listen" err="listen tcp 10.0.0.7:99: bind: address already in use"',
        "port", "10.0.0.7:99",
    ),
    "llama.cpp's own levels, through a router": (
        "[odd-router stdout] [77] 0.00.910.211 E clip_init: failed to load model '/m/p.gguf': load_hparams: unknown projector type: oddity\n"
        "[10:00:00]\nINFO\n"
        "[odd-router stdout] [77] 0.00.910.385 E srv load_model: failed to load multimodal model, '/m/p.gguf'",
        "model-config", "oddity",
    ),
    "a journal of another language": (
        "mär 03 10:00:00 gpu1 odd[7]: CUDA error: out of memory\nmär 03 10:00:00 gpu1 odd[7]:   current device: 7, in function odd_alloc at odd.cu:7",
        "memory", "The log says: current device: 7",
    ),
    "colours written out": (
        "^[[1;36m(EngineCore pid=7)^[[0;0m ERROR 02-03 10:00:00 [core.py:7] torch.AcceleratorError: CUDA error: device-side assert triggered^M",
        "kernel-crash", "index or value",
    ),
    "of errors that follow from each other, the first": (
        "odd_loader: error loading model: check_dims: tensor 'blk.0.odd' has wrong shape; expected 8, got 4\n"
        "odd_load_from_file: failed to load model\n"
        "main: error: unable to load model",
        "weights", "expected 8, got 4",
    ),
    "but not a line that says nothing of what it is": (
        " x Container odd-1      Error                           30.6s\n"
        "dependency failed to start: container odd-1 exited (3)",
        "host", "odd-1",
    ),
    "what a pointer quotes": (
        "(EngineCore pid=7) RuntimeError: Worker failed with error 'AssertionError: auto_functionalized odd node', please check the stack trace above for the root cause\n"
        "(EngineCore pid=7) ERROR 02-03 10:00:00 [odd.py:7] Worker proc OddWorker-1 died unexpectedly, shutting down executor.",
        "compile", "odd node",
    ),
    "an exception of C++": (
        "terminate called after throwing an instance of 'odd::Error'\n  what():  [odd] Failed: MPI error odd.cpp:7 '6'\nAborted",
        "nccl", "odd.cpp:7 '6'",
    ),
    "one whose possible causes are listed": (
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
        "\tclass_name: OddServer\n"
        "The actor is dead. There are some potential root causes. (1) It is killed by OOM killer. (2) It is crashed by SIGSEGV.",
        "multi-node", "ActorDiedError",
    ),
    "a thread that no GPU serves": (
        "Exception in thread Thread-7 (make):\nTraceback (most recent call last):\n"
        '  File "/opt/odd/odd.py", line 7, in make\n    make()\n'
        "RuntimeError: API call is not supported in the installed CUDA driver",
        "driver", "CUDA driver",
    ),
    "a kernel's lines": ("[  7.123456] NVRM: GPU 0000:07:00.0: RmInitAdapter failed! (0x77)", "driver", "0000:07:00.0"),
    "a record within a record": (
        '{"timestamp":"2026-02-03T10:00:00Z","level":"ERROR","fields":{"message":"Shard 3 crashed"},"target":"odd_launcher"}\nError: OddShardFailed',
        "memory", "Shard 3",
    ),
    "a signal by its name": (
        'time=2026-02-03T10:00:00Z level=ERROR msg="error loading odd server" error="odd runner process has terminated: signal: terminated"',
        "host", "asked to stop",
    ),
    "a tool of the shell, of what no row knows": ("mkdir: cannot create directory '/odd': Function not implemented", "host", "/odd"),
    "a tool of the shell": ("chown: changing ownership of '/odd/cache': Read-only file system", "host", "/odd/cache"),
    "the toolkit, of a library that it lacks": (
        "odd: Error response from daemon: failed to create shim task: error running hook #0: exit status 1\n"
        "nvidia-container-cli: initialization error: cannot open shared object file: no such file or directory: unknown.",
        "driver", "shared object",
    ),
    "a parameter's name is no subject": (
        "TypeError: odd_template_format() got an unexpected keyword argument 'trust_remote_code'", "abi", "odd_template_format",
    ),
    "an operator called with too much": (
        "[02/03/2026-10:00:00] [TRT-LLM] [E] Failed to initialize executor on rank 1: odd::all_gather() expected at most 3 argument(s) but received 5",
        "abi", "odd::all_gather",
    ),
    "a service's address": (
        'Exception: Failed to connect to odd server with ClientOptions { odd_url: ["http://odd:2379"], lease: true }', "multi-node", "2379",
    ),
    "a GPU's library, in a program without exceptions": (
        "INFO [ odd_slots] slot is processing task | tid=7\n"
        "CUDA error: an illegal memory access was encountered\n"
        "  current device: 0, in function odd_synchronize at /src/odd-cuda.cu:77\n"
        "/src/odd-cuda.cu:7: CUDA error",
        "kernel-crash", "odd_synchronize",
    ),
    "the same, once it serves": (
        "INFO:     Application startup complete.\n[gpu_id=0] Prefill batch. #new-seq: 1\n"
        "CUDA Error: no kernel image is available for execution on the device (209) /src/odd.cuh: line 7 at function odd()",
        "arch", "GPU's architecture",
    ),
    "the same, of another process": (
        "Server error: 503 - [address=0.0.0.0:7, pid=7] HIP error: invalid device function For debugging consider passing ODD=1",
        "arch", "GPU's architecture",
    ),
    "a check of C++'s own library": (
        "0.21.532.943 I srv          load:   /usr/bin/odd-server\n"
        "/usr/include/c++/16/bits/odd_vector.h:77: odd::reference odd<_Tp>::operator[](size_type) [with _Tp = int]: Assertion '__odd < this->size()' failed.",
        "kernel-crash", "__odd < this->size()",
    ),
    "of the causes that Rust lists, the innermost": (
        "odd-1  | Error: Could not create backend\nodd-1  | \nodd-1  | Caused by:\n"
        "odd-1  |     0: Could not start backend\nodd-1  |     1: cannot find tensor odd.7.weight",
        "weights", "odd.7.weight",
    ),
    "of causes that say nothing, what was logged before": (
        "2026-02-03T10:00:00.1Z  INFO odd_router: src/odd.rs:7: Starting model backend\n"
        "2026-02-03T10:00:01.1Z ERROR odd_backend: src/odd.rs:8: Could not start Odd backend: cannot find tensor odd.7.weight\n"
        "Error: Could not create backend\n\nCaused by:\n    Could not start a suitable backend",
        "weights", "odd.7.weight",
    ),
    "a launcher that ends what is late": (
        "2026-02-03 10:00:00.1 [Error] (Odd) odd-server failed to start within timeout\n"
        "2026-02-03 10:00:05.1 [Warn] (Odd) Process did not respond to SIGTERM, using SIGKILL\n"
        "2026-02-03 10:00:05.2 [Error] (Odd) Error 500: POST /odd",
        "hang", "odd-server",
    ),
    "a loop that an engine cannot go on without": (
        "INFO:     Uvicorn running on http://0.0.0.0:7\n2026-02-03 10:00:00,1 - odd - ERROR - Engine loop failed with error: odd quantization",
        "quant-dtype", "odd quantization",
    ),
    "a process's exit code": ("[02-03 10:00:00] Rank 0 odd is dead.\n[02-03 10:00:02] Exit code: -9", "memory", "SIGKILL"),
}  # fmt: skip


@pytest.mark.parametrize(("log", "family", "word"), FAILED.values(), ids=FAILED.keys())
def test_the_decisive_line_is_told(log: str, family: str, word: str) -> None:
    found = told(log)
    assert (found.outcome, found.family) == (Outcome.FAILED, family)
    assert word in found.summary


WENT_ON = {
    "memory that another way was found around": (
        "odd_alloc_buffer: allocating 77.50 MiB on device 1: cudaMalloc failed: out of memory\n"
        "main: server is listening on http://127.0.0.1:8080 - starting the main loop",
        Outcome.SERVES,
    ),
    "a record of another level": ('time=2026-02-03T10:00:00Z level=INFO msg="no GPU found" error="nvml: not found"', Outcome.NOT_READY),
    "an error after which its program goes on": (
        "ERROR 02-03 10:00:00 [odd.py:7] nvidia-smi: device handle for GPU 7 is odd\nINFO 02-03 10:00:01 [odd.py:8] Loading the model",
        Outcome.NOT_READY,
    ),
    "a warning's cause": (
        "INFO 02-03 10:00:00 [odd.py:7] Loading the model\nWARNING 02-03 10:00:00 [odd.py:7] CUDA error: odd query, which does not matter",
        Outcome.NOT_READY,
    ),
    "a thread that counts what was used": (
        "Exception in thread Thread-7 (usage):\nTraceback (most recent call last):\n"
        '  File "/opt/odd/odd.py", line 7, in usage\n    usage()\nKeyError: \'odd\'',
        Outcome.UNCLEAR,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("log", "outcome"), WENT_ON.values(), ids=WENT_ON.keys())
def test_what_was_survived_is_no_failure(log: str, outcome: Outcome) -> None:
    assert told(log).outcome is outcome


def test_a_blank_line_of_a_logger_is_no_progress() -> None:
    assert told("INFO\nmain: error: unable to load model\nINFO").outcome is Outcome.FAILED


def test_lines_of_another_stream_are_not_of_the_message() -> None:
    """Though they bear no name, as a traceback that nothing caught does not."""
    found = told(
        "(Worker pid=7) ERROR 02-03 10:00:00 [odd.py:7] Traceback (most recent call last):\n"
        '(Worker pid=7) ERROR 02-03 10:00:00 [odd.py:7]   File "/opt/vllm/odd.py", line 7, in load\n'
        "(Worker pid=7) ERROR 02-03 10:00:00 [odd.py:7] ValueError: Following weights were not initialized from checkpoint: {'blk.odd'}\n"
        "Traceback (most recent call last):\n"
        '  File "/opt/vllm/odd_main.py", line 9, in odd_main\n    odd_main.run()\n'
    )
    assert (found.family, found.cause) == ("weights", "weight-missing")
    assert "blk.odd" in found.summary
    assert "odd_main" not in found.summary


def test_a_plain_value_where_an_object_belongs() -> None:
    """Is told with the code that says which, and is no matter of releases."""
    found = told(
        "Traceback (most recent call last):\n"
        '  File "/opt/transformers/configuration_odd.py", line 7, in to_dict\n    self.odd_config.to_dict()\n'
        "AttributeError: 'str' object has no attribute 'to_dict'"
    )
    assert (found.family, found.cause) == ("model-config", "model-config-wrong-kind")
    assert "self.odd_config" in found.summary


def test_nothing_where_an_object_belongs() -> None:
    """Is no matter of releases either, and where it happened says of what it is."""
    found = told(
        "Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/opt/sglang/srt/layers/attention/odd_backend.py", line 7, in forward\n    assert odd.shape == other_odd.shape\n'
        "AttributeError: 'NoneType' object has no attribute 'shape'"
    )
    assert found.family == "backend"
    assert "other_odd" in found.summary
    assert found.fix is not None
    assert "backends" in found.fix.text


def test_a_module_that_imports_itself_is_named() -> None:
    found = told(
        "ImportError: cannot import name '_odd_C' from partially initialized module 'odd.inner' (most likely due to a circular import)"
    )
    assert (found.family, found.cause) == ("abi", "import-name-missing")
    assert "from odd.inner" in found.summary


def test_a_message_without_a_name_is_told_with_its_code() -> None:
    found = told(
        "Traceback (most recent call last):\n"
        '  File "/opt/vllm/model_executor/models/odd.py", line 7, in __init__\n    assert size % self.odd_heads == 0\n'
        "ZeroDivisionError: integer modulo by zero"
    )
    assert found.family == "model-config"
    assert "self.odd_heads" in found.summary


def test_the_messages_own_advice_is_passed_on() -> None:
    """Only where it names something."""
    advised = told(
        "RuntimeError: odd_slots run out of memory. Please set a smaller number for `--max-odd-requests`. left=1"
    )
    assert advised.fix is not None
    assert "--max-odd-requests" in advised.fix.text
    plainly = told("RuntimeError: odd_slots run out of memory. Please ask somebody. left=1")
    assert plainly.fix is not None
    assert "somebody" not in plainly.fix.text


@pytest.mark.parametrize(
    ("line", "family"),
    [
        ("RuntimeError: odd fp8 layout is not supported", "quant-dtype"),
        ("RuntimeError: odd NCCL trouble", "nccl"),
        ("RuntimeError: the odd nvidia driver trouble", "driver"),
        ("RuntimeError: cannot find the nvidia driver's oddity", "driver"),
        ("RuntimeError: cannot find tensor odd.7.weight", "weights"),
    ],
)
def test_a_fix_speaks_of_the_family_rather_than_of_a_setting(line: str, family: str) -> None:
    found = told(line)
    assert found.family == family
    assert found.fix is not None
    assert "the setting" not in found.fix.text


def test_a_shells_redirection_compares_nothing() -> None:
    found = told(
        "subprocess.CalledProcessError: Command '/opt/odd -o /tmp/odd 2> /tmp/odd.log' returned non-zero exit status 7."
    )
    assert "outside its bounds" not in found.summary


def test_what_transfers_the_cache_is_no_backend_to_choose() -> None:
    found = told(
        "Traceback (most recent call last):\n"
        '  File "/opt/vllm/distributed/kv_transfer/odd_connector.py", line 7, in __init__\n    raise RuntimeError("NIXL is not available")\n'
        "RuntimeError: NIXL is not available"
    )
    assert (found.family, found.cause) == ("abi", "cache-transfer-missing")
    assert found.fix is not None
    assert found.fix.patch is None
