"""Logs that were written for these tests, in the forms that engines and what carries their output give them."""

# ruff: noqa: E501 - log lines are as long as they are
from __future__ import annotations

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.50 GiB of \
which 1.25 GiB is free. "
)

HEALTHY_VLLM = """\
INFO 11-20 10:02:11 [__init__.py:210] Automatically detected platform cuda.
WARNING 11-20 10:02:12 [interface.py:88] Failed to import from vllm._extra_C: ImportError('libextra.so: undefined symbol: _Zx')
(APIServer pid=40) INFO 11-20 10:02:12 [api.py:11] non-default args: {'model': '/m', 'note': 'CUDA out of memory'}
(APIServer pid=40) WARNING 11-20 10:02:12 [sys.py:5] Found ulimit of 1024, which can cause errors like \
`OSError: [Errno 24] Too many open files`. Consider raising it.
(EngineCore_DP0 pid=77) INFO 11-20 10:02:15 [core.py:58] Initializing an engine with config: model='/m', dtype=bfloat16
(EngineCore_DP0 pid=77) WARNING 11-20 10:02:16 [nixl.py:31] optional package is absent
(EngineCore_DP0 pid=77) WARNING 11-20 10:02:16 [nixl.py:31] Traceback (most recent call last):
(EngineCore_DP0 pid=77) WARNING 11-20 10:02:16 [nixl.py:31]   File "/opt/vllm/nixl.py", line 3, in <module>
(EngineCore_DP0 pid=77) WARNING 11-20 10:02:16 [nixl.py:31]     import nixl
(EngineCore_DP0 pid=77) WARNING 11-20 10:02:16 [nixl.py:31] ModuleNotFoundError: No module named 'nixl'
(EngineCore_DP0 pid=77) Traceback (most recent call last):
(EngineCore_DP0 pid=77)   File "/opt/vllm/usage.py", line 9, in report
(EngineCore_DP0 pid=77)     post(data)
(EngineCore_DP0 pid=77) requests.exceptions.ConnectionError: HTTPSConnectionPool(host='stats.example', port=443): Max \
retries exceeded
(EngineCore_DP0 pid=77) INFO 11-20 10:03:00 [shm_broadcast.py:9] No available shared memory broadcast block found in 60 \
seconds. This is normal while kernels compile.
(EngineCore_DP0 pid=77) INFO 11-20 10:04:00 [shm_broadcast.py:9] No available shared memory broadcast block found in 60 \
seconds. This is normal while kernels compile.
(EngineCore_DP0 pid=77) INFO 11-20 10:04:10 [graphs.py:7] If out-of-memory error occurs during capture, lower \
gpu_memory_utilization.
(APIServer pid=40) INFO:     Started server process [40]
(APIServer pid=40) INFO:     Application startup complete.
(APIServer pid=40) ERROR 11-20 10:09:00 [serving.py:91] Error in preprocessing prompt inputs
(APIServer pid=40) ERROR 11-20 10:09:00 [serving.py:91] Traceback (most recent call last):
(APIServer pid=40) ERROR 11-20 10:09:00 [serving.py:91]   File "/opt/vllm/serving.py", line 77, in create
(APIServer pid=40) ERROR 11-20 10:09:00 [serving.py:91] ValueError: This model's maximum context length is 4096 tokens.
(APIServer pid=40) INFO:     10.0.0.9:1234 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request
"""

HEALTHY_SGLANG = """\
[2025-11-20 10:02:11] server_args=ServerArgs(model_path='/m', note='RuntimeError: CUDA error')
[2025-11-20 10:02:12] Fail to set RLIMIT_NOFILE: current limit exceeds maximum limit
[2025-11-20 10:02:20 TP0] Load weight begin. avail mem=78.10 GB
[2025-11-20 10:02:20 TP1] Ignore import error when loading sglang.srt.models.exotic: No module named 'exotic'
[2025-11-20 10:03:20 TP0] Using default MoE config. Performance might be sub-optimal! Config file not found at /c.json
[2025-11-20 10:04:20] INFO:     Application startup complete.
[2025-11-20 10:04:21] The server is fired up and ready to roll!
"""

VLLM_WORKERS = f"""\
(EngineCore_DP0 pid=80) INFO 11-20 10:02:10 [core.py:58] Initializing an engine with config: model='/m', \
gpu_memory_utilization=0.9, max_seq_len=32768
(Worker_TP0 pid=91) ERROR 11-20 10:02:11 [multiproc_executor.py:597] WorkerProc failed to start.
(Worker_TP1 pid=92) ERROR 11-20 10:02:11 [multiproc_executor.py:597] WorkerProc failed to start.
(Worker_TP1 pid=92) ERROR 11-20 10:02:11 [multiproc_executor.py:597] Traceback (most recent call last):
(Worker_TP0 pid=91) ERROR 11-20 10:02:11 [multiproc_executor.py:597] Traceback (most recent call last):
(Worker_TP1 pid=92) ERROR 11-20 10:02:11 [multiproc_executor.py:597]   File "/opt/vllm/v1/executor/multi.py", line 571, in main
(Worker_TP0 pid=91) ERROR 11-20 10:02:11 [multiproc_executor.py:597]   File "/opt/vllm/v1/executor/multi.py", line 571, in main
(Worker_TP1 pid=92) ERROR 11-20 10:02:12 [multiproc_executor.py:597]     worker = WorkerProc(*args)
(Worker_TP1 pid=92) ERROR 11-20 10:02:12 [multiproc_executor.py:597] {OOM}
(Worker_TP0 pid=91) ERROR 11-20 10:02:12 [multiproc_executor.py:597]     worker = WorkerProc(*args)
(Worker_TP0 pid=91) ERROR 11-20 10:02:12 [multiproc_executor.py:597] RuntimeError: [../gloo/pair.cc:534] Connection \
closed by peer [127.0.0.1]:5
(EngineCore_DP0 pid=80) ERROR 11-20 10:02:14 [core.py:708] EngineCore failed to start.
(EngineCore_DP0 pid=80) ERROR 11-20 10:02:14 [core.py:708] Traceback (most recent call last):
(EngineCore_DP0 pid=80) ERROR 11-20 10:02:14 [core.py:708]   File "/opt/vllm/v1/engine/core.py", line 699, in run_engine_core
(EngineCore_DP0 pid=80) Process EngineCore_DP0:
(EngineCore_DP0 pid=80) ERROR 11-20 10:02:14 [core.py:708]     engine_core = EngineCoreProc(*args)
(EngineCore_DP0 pid=80) ERROR 11-20 10:02:14 [core.py:708] Exception: WorkerProc initialization failed due to an \
exception in a background process. See stack trace for root cause.
(EngineCore_DP0 pid=80) Traceback (most recent call last):
(EngineCore_DP0 pid=80)   File "/usr/lib/python3.12/multiprocessing/process.py", line 314, in _bootstrap
(EngineCore_DP0 pid=80)     self.run()
(EngineCore_DP0 pid=80)   File "/opt/vllm/v1/engine/core.py", line 712, in run_engine_core
(EngineCore_DP0 pid=80) Exception: WorkerProc initialization failed due to an exception in a background process. See \
stack trace for root cause.
(APIServer pid=40) Traceback (most recent call last):
(APIServer pid=40)   File "/usr/local/bin/vllm", line 10, in <module>
(APIServer pid=40)     sys.exit(main())
(APIServer pid=40)   File "/opt/vllm/entrypoints/cli/main.py", line 73, in main
(APIServer pid=40) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}
"""

VLLM_ARGUMENT = """\
Traceback (most recent call last):
  File "/opt/venv/bin/vllm", line 8, in <module>
    sys.exit(main())
  File "/opt/vllm/entrypoints/cli/main.py", line 120, in main
    args.dispatch_function(args)
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, User-specified max_model_len (9000) is greater than the derived max_model_len (max_position_embeddings=2048 \
or model_max_length=None in model's config.json). [type=value_error, input_value=ArgsKwargs((), {}), input_type=ArgsKwargs]
"""

SGLANG_SCHEDULER = f"""\
[2025-11-20 10:02:11] server_args=ServerArgs(model_path='/m')
[2025-11-20 10:02:20 TP0] Load weight begin. avail mem=20.10 GB
[2025-11-20 10:02:31 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "/sgl-workspace/sglang/python/sglang/srt/managers/scheduler.py", line 2100, in run_scheduler_process
    scheduler = Scheduler(server_args)
  File "/sgl-workspace/sglang/python/sglang/srt/model_executor/model_runner.py", line 410, in load_model
    self.model = get_model(config)
{OOM}

[2025-11-20 10:02:31] Received sigquit from a child process. It usually means the child failed.
Killed
"""

CHAIN = """\
(EngineCore pid=7) ERROR 11-20 10:02:11 [core.py:12] EngineCore failed to start.
(EngineCore pid=7) ERROR 11-20 10:02:11 [core.py:12] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-20 10:02:11 [core.py:12]   File "/opt/vllm/loader.py", line 3, in load
(EngineCore pid=7) ERROR 11-20 10:02:11 [core.py:12] OSError: [Errno 28] No space left on device
(EngineCore pid=7) ERROR 11-20 10:02:11 [core.py:12]
(EngineCore pid=7) ERROR 11-20 10:02:11 [core.py:12] During handling of the above exception, another exception occurred:
(EngineCore pid=7) ERROR 11-20 10:02:11 [core.py:12]
(EngineCore pid=7) ERROR 11-20 10:02:11 [core.py:12] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-20 10:02:11 [core.py:12]   File "/opt/vllm/core.py", line 9, in run
(EngineCore pid=7) ERROR 11-20 10:02:11 [core.py:12] RuntimeError: the loader gave up
"""

NATIVE = """\
ingot core on cuda:0
Traceback (most recent call last):
  File "/app/appliance/engine/__main__.py", line 40, in main
    engine.load()
  File "/app/appliance/engine/weights.py", line 88, in load
    raise LookupError("gone")
LookupError: gone
"""
