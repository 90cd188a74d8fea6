"""A stand-in for `vllm serve`: prints what a real one prints, and answers on the socket that it is given.

FAKE_VLLM, as JSON, says what goes otherwise: `fails` (lines, then exit status 1), `stays` (the same without an exit),
`hangs` (after so many lines, with a `bar` in the next), `nan`, `only` (an answer by route, of a model that generates
nothing; the rest is not there, or `unsupported` with this status), `breaks` (killed after so many pieces of a
stream), `waits_s` between pieces, `deaf` (to SIGTERM), `leaves` (a process in a session of its own), `silent`
(generates nothing after `ready`), `cries` (lines, which it logs when it is asked for tokens of a text, and lives on),
`dies` (lines, which it logs at its second question, of which it then only says that it failed), `worker` (the signal
that ends a worker of its own; it then reports an error of the core), `errs` (a line, which it logs with the time in
the middle of its start, and goes on), `compiles` (a command, which it runs before it serves, and goes on whatever
comes of that), `compiles_unseen` (the same, from a process that is not Python's to watch), `streams` (by route, what
each request after the self-test is sent as a stream; the requests are logged).
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

START = """\
(APIServer pid=1) INFO 11-20 16:20:24 [model.py:733] Resolved architecture: LlamaForCausalLM
(EngineCore pid=2) INFO 11-20 16:20:30 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='m'
(Worker pid=3) INFO 11-20 16:20:37 [cpu_model_runner.py:68] Starting to load model m...
\rLoading safetensors checkpoint shards:   0% Completed | 0/2 [00:00<?, ?it/s]
\rLoading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00, 36.12it/s]
\rLoading safetensors checkpoint shards: 100% Completed | 2/2 [00:00<00:00, 36.12it/s]
(Worker pid=3) INFO 11-20 16:20:37 [default_loader.py:501] Loading weights took 0.03 seconds
(Worker pid=3) INFO 11-20 16:20:38 [cpu_model_runner.py:87] Warming up model for the compilation...
(Worker pid=3) INFO 11-20 16:21:02 [cpu_model_runner.py:91] Warming up done.
(EngineCore pid=2) INFO 11-20 16:21:02 [kv_cache_utils.py:2327] CPU KV cache size: 419,328 tokens
(EngineCore pid=2) INFO 11-20 16:21:05 [core.py:402] init engine (profile, create kv cache, warmup model) took 26.39 s
(APIServer pid=1) INFO 11-20 16:21:05 [launcher.py:186] Available routes are:
""".splitlines()

BEHAVIOUR: dict[str, Any] = json.loads(os.environ.get("FAKE_VLLM", "{}"))
MAX_MODEL_LEN = 480
SELF_TEST_QUESTIONS = 2
# What vLLM says when a worker is gone.
WORKER_GONE = """\
(EngineCore pid={pid}) ERROR 11-20 16:21:09 [core.py:1100] EngineCore encountered a fatal error.
(EngineCore pid={pid}) ERROR 11-20 16:21:09 [core.py:1100] Traceback (most recent call last):
(EngineCore pid={pid}) ERROR 11-20 16:21:09 [core.py:1100]   File "/x/vllm/v1/engine/core.py", line 1091, in run
(EngineCore pid={pid}) ERROR 11-20 16:21:09 [core.py:1100] RuntimeError: CUDA error: an illegal memory access
(APIServer pid={pid}) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}
"""
counters = {"prompt": 0, "output": 0, "stop": 0}
running = 0


def main() -> None:
    arguments = dict(word[2:].partition("=")[::2] for word in sys.argv[2:] if word.startswith("--"))
    if BEHAVIOUR.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if BEHAVIOUR.get("leaves"):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "left-by-vllm"], start_new_session=True)
    for number, line in enumerate(START):
        if number == BEHAVIOUR.get("hangs"):
            print(BEHAVIOUR.get("bar", ""), end="", flush=True)
            time.sleep(600)
        print(line, flush=True)
        if number == len(START) // 2 and "errs" in BEHAVIOUR:
            print(f"{BEHAVIOUR['errs']}{time.time()}", flush=True)
        time.sleep(BEHAVIOUR.get("line_s", 0.01))
    if "compiles" in BEHAVIOUR:
        with contextlib.suppress(Exception):
            subprocess.run(BEHAVIOUR["compiles"], check=False)
    if "compiles_unseen" in BEHAVIOUR:
        start = "import subprocess, sys; subprocess.run(['nvcc', *sys.argv[1:]], executable=sys.executable)"
        subprocess.Popen([sys.executable, "-I", "-S", "-c", start, *BEHAVIOUR["compiles_unseen"]])
    for line in BEHAVIOUR.get("fails", BEHAVIOUR.get("stays", ())):
        print(line, flush=True)
    if "worker" in BEHAVIOUR:
        lose_worker(BEHAVIOUR["worker"])
    if "stays" in BEHAVIOUR:
        time.sleep(600)
    if "fails" in BEHAVIOUR:
        sys.exit(1)
    asyncio.run(serve(arguments["uds"], arguments["served-model-name"]))


def lose_worker(number: int) -> None:
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    for name, pid in (("APIServer", os.getpid()), ("Worker_TP1", worker.pid)):
        print(f"({name} pid={pid}) INFO 11-20 16:21:06 [worker.py:1] ready", flush=True)
    time.sleep(2.5)  # until it has been seen
    worker.send_signal(number)
    worker.wait()
    print(WORKER_GONE.format(pid=os.getpid()), end="", flush=True)
    sys.exit(1)


async def serve(path: str, model: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await respond(reader, writer, model)
        writer.close()

    server = await asyncio.start_unix_server(answer, path, limit=1 << 20)
    async with server:
        await server.serve_forever()


async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, model: str) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, target, _ = head[0].split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    raw = await reader.readexactly(int(headers.get("content-length", 0)))
    body: Any = json.loads(raw or b"null") if "multipart" not in headers.get("content-type", "") else raw
    path = target.partition("?")[0]
    if path == "/health":
        await send(writer, {})
    elif path == "/metrics":
        await send(writer, metrics(model).encode(), kind="text/plain")
    elif path == "/v1/models":
        await send(writer, {"data": [{"id": model, "max_model_len": MAX_MODEL_LEN, "root": "/secret/place"}]})
    elif path in BEHAVIOUR.get("only", ()):
        if isinstance(body, dict):
            print(path, json.dumps(body), flush=True)
        counters["prompt"] += 3
        await send(writer, BEHAVIOUR["only"][path])
    elif "unsupported" in BEHAVIOUR:
        message = "The model does not support Completions API"
        await send(writer, {"error": {"message": message}}, status=BEHAVIOUR["unsupported"])
    elif path in BEHAVIOUR.get("streams", ()) and body.get("stream"):
        print(path, json.dumps(body), flush=True)
        frames = [f"data: {json.dumps(each)}\n\n" for each in BEHAVIOUR["streams"][path]]
        await send(writer, "".join([*frames, "data: [DONE]\n\n"]).encode(), kind="text/event-stream")
    elif path in ("/v1/completions", "/v1/chat/completions") and "only" not in BEHAVIOUR:
        await generate(reader, writer, body, model)
    elif path == "/tokenize":
        print(*BEHAVIOUR.get("cries", ()), sep="\n", flush=True)
        await send(writer, {"tokens": [1, 2], "count": 2, "seen": sorted(headers), "target": target, "method": method})
    else:
        await send(writer, b'{"detail":"Not Found"}', status=404)


async def generate(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: dict[str, Any], model: str
) -> None:
    global running
    if body.get("model") != model:
        message = f"The model `{body.get('model')}` does not exist."
        await send(writer, {"error": {"message": message, "type": "NotFoundError", "code": 404}}, status=400)
        return
    if BEHAVIOUR.get("silent") and counters["stop"] >= SELF_TEST_QUESTIONS:
        print("waits for ever", flush=True)
        await asyncio.sleep(600)
    if "dies" in BEHAVIOUR and counters["stop"]:
        print(*BEHAVIOUR["dies"], sep="\n", flush=True)
        await send(writer, {"error": {"message": "EngineCore encountered an issue.", "code": 500}}, status=500)
        return
    tokens = int(body.get("max_tokens") or 4)
    running += 1
    counters["prompt"] += 3
    hung_up = asyncio.ensure_future(reader.read(1))  # the end of the client's half: it waits no more
    try:
        if body.get("stream"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                         b"server: uvicorn\r\ntransfer-encoding: chunked\r\n\r\n")  # fmt: skip
            for number in range(tokens):
                if number == BEHAVIOUR.get("breaks"):
                    writer.write(b'b\r\ndata: {"cut\r\n')
                    await writer.drain()
                    await asyncio.sleep(0.1)
                    print("Killed", flush=True)
                    os.kill(os.getpid(), signal.SIGKILL)
                counters["output"] += 1
                frame = b"data: " + json.dumps({"choices": [{"text": f" {number}"}]}).encode() + b"\n\n"
                writer.write(f"{len(frame):x}\r\n".encode() + frame + b"\r\n")
                await writer.drain()
                while "user" in body and not os.path.exists(body["user"]):  # noqa: ASYNC110  a test makes it
                    await asyncio.sleep(0.01)
                done, _ = await asyncio.wait({hung_up}, timeout=BEHAVIOUR.get("waits_s", 0.001))
                if done:
                    print("client hung up", flush=True)
                    return
            writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        else:
            await asyncio.sleep(BEHAVIOUR.get("waits_s", 0.0))
            counters["output"] += tokens
            logprob = float("nan") if BEHAVIOUR.get("nan") else -0.5
            choice = {"text": " 2", "logprobs": {"token_logprobs": [logprob] * tokens}, "finish_reason": "stop"}
            await send(writer, {"id": "cmpl-1", "choices": [choice], "usage": {"completion_tokens": tokens}})
        counters["stop"] += 1
    except ConnectionError:
        print("client hung up", flush=True)
    finally:
        running -= 1
        hung_up.cancel()


def metrics(model: str) -> str:
    label = f'{{engine="0",model_name="{model}"}}'
    finished = f'{{engine="0",finished_reason="stop",model_name="{model}"}}'
    return (
        "# TYPE vllm:num_requests_running gauge\n"
        f"vllm:num_requests_running{label} {float(running)}\nvllm:num_requests_waiting{label} 0.0\n"
        f"vllm:kv_cache_usage_perc{label} 0.25\nvllm:prompt_tokens_total{label} {float(counters['prompt'])}\n"
        f"vllm:generation_tokens_total{label} {float(counters['output'])}\n"
        f"vllm:request_success_total{finished} {float(counters['stop'])}\n"
    )


async def send(writer: asyncio.StreamWriter, content: Any, status: int = 200, kind: str = "application/json") -> None:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    reason = http.HTTPStatus(status).phrase
    writer.write(
        f"HTTP/1.1 {status} {reason}\r\ncontent-type: {kind}\r\ncontent-length: {len(raw)}\r\n\r\n".encode() + raw
    )
    await writer.drain()


if __name__ == "__main__":
    main()
