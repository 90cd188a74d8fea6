"""A core that keeps to the protocol and to a script: it answers with tokens that can be foretold, and fails on cue.

`python scripted_core.py SCRIPT --connect FOLDER --parent PID`, where SCRIPT is JSON: `at` names the cue (start, hello,
configured, loaded, submit: the n-th request of `nth`), `do` what happens then. `of` holds what differs for a model, by
the name of its folder. Without a cue it serves: a request with
a seed gets the answer of that number in `answers`, which ends, and any other one TEXT over and over.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from array import array
from pathlib import Path
from typing import Any

import zmq

from appliance.core_protocol import (
    Abort,
    CoreBeat,
    CorePhase,
    EngineConfig,
    Fatal,
    FinishReason,
    Hello,
    Loaded,
    Outputs,
    PromptLogprobs,
    Shutdown,
    Submit,
    TokenLogprob,
    TokenOutput,
    decode_to_core,
    encode,
)
from appliance.protocol import Load, Phase, Progress, StepKind

TEXT = b"the quick brown fox jumps over the lazy dog. "


class Core:
    def __init__(self, script: dict[str, Any], folder: Path, parent: int) -> None:
        self.script = script
        self.parent = parent
        self.folder = folder
        self.context = zmq.Context()
        self.incoming = self.context.socket(zmq.PULL)
        self.incoming.connect(f"ipc://{folder}/to-core")
        self.outgoing = self.context.socket(zmq.PUSH)
        self.outgoing.connect(f"ipc://{folder}/from-core")
        self.lock = threading.Lock()
        self.silent = self.mute = False
        self.where, self.since = "scripted", time.monotonic()
        self.submits = 0
        self.running: dict[str, tuple[Submit, int]] = {}
        self.vocab: dict[int, int] = {}

    def send(self, message: Any) -> None:
        with self.lock:
            if not self.silent:
                self.outgoing.send(encode(message))

    def last_words(self, message: Fatal) -> None:
        """Returns once it is on its way, as the real core's does: this process is about to end."""
        context = zmq.Context()
        with context.socket(zmq.PUSH) as socket:
            socket.connect(f"ipc://{self.folder}/from-core")
            socket.send(encode(message))
        context.term()

    def cue(self, at: str) -> None:
        if self.script.get("at") == at:
            self.act(self.script["do"])

    def act(self, do: str) -> None:
        match do:
            case "raise":
                raise RuntimeError("the flux capacitor is empty")
            case "raise-chained":
                try:
                    raise MemoryError("first of all")
                except MemoryError as error:
                    raise RuntimeError("Engine core initialization failed. See root cause above.") from error
            case "raise-without-fatal":
                self.script["fatal"] = False
                raise ValueError("nobody was told")
            case "fatal-and-stay":
                print("Traceback (most recent call last):\nLookupError: lost in thought", file=sys.stderr, flush=True)
                self.send(Fatal(exception="LookupError", message="lost in thought", traceback=""))
                time.sleep(600)
            case "rank-hangs":
                stands = 'Thread 7 (idle): "MainThread"\n    sulk (odd/even.py:7)'
                message = "Rank 1 (pid 7) of the model hangs in sulk (odd/even.py:7): the others have waited for 1.8 s."
                told = 'Traceback (most recent call last):\n  File "odd/even.py", line 7, in sulk\n'
                told += f"RankHungError: {message}"
                print(told, file=sys.stderr, flush=True)
                stacks = f"Process 7, state S: python -m appliance.engine --rank 1\n{stands}\n"
                self.last_words(Fatal(exception="RankHungError", message=message, traceback=told, stacks=stacks))
                os._exit(1)
            case "exit":
                print("goodbye, without a traceback", flush=True)
                os._exit(7)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "silence":
                self.silent = True
                while True:
                    time.sleep(1)
            case "ignore-term":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                self.script["deaf"] = True
            case "leave-a-child":
                child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
                (Path(self.script["write"])).write_text(str(child.pid))
            case "flood":
                if "first" in self.script:
                    print(f"Traceback (most recent call last):\n{self.script['first']}", file=sys.stderr, flush=True)
                line = b"x" * 98 + b"\n"
                for _ in range(self.script.get("megabytes", 20) * 100):
                    os.write(1, line * 106)
                raise RuntimeError("after the flood")
            case "odd-log":
                os.write(1, b"bad \xff\xfe utf-8\n" + b"long " * 40_000 + b"\n" + b"10%\r50%\r100%\n" + b"no newline")
            case "stuck-step":
                self.where, self.since = "step", time.monotonic()
                time.sleep(600)
            case "mute":  # from now on it beats, takes requests, and generates nothing
                self.mute = True
            case "escape":
                child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
                (Path(self.script["write"])).write_text(str(child.pid))
            case "nan":
                self.script["logprob"] = float("nan")
            case _:
                raise AssertionError(do)

    def run(self) -> None:
        self.cue("start")
        self.send(Hello(pid=os.getpid(), python="scripted"))
        threading.Thread(target=self.beat, daemon=True).start()
        self.cue("hello")
        config = self.receive()
        if not isinstance(config, EngineConfig):
            return
        self.script |= self.script.get("of", {}).get(Path(config.model_folder).name, {})
        (Path(self.script["write"]) if self.script.get("tell") else Path(os.devnull)).write_bytes(encode(config))
        self.cue("configured")
        self.send(CorePhase(phase=Phase.WEIGHTS, progress=Progress(done=1, total=2, unit="bytes")))
        time.sleep(self.script.get("load_s", 0))
        self.send(CorePhase(phase=Phase.WEIGHTS, progress=Progress(done=2, total=2, unit="bytes"), outcome="done"))
        self.send(CorePhase(phase=Phase.GRAPHS, outcome="skipped"))
        self.cue("loaded")
        self.send(Loaded(vocab_size=512, num_blocks=8, block_size=16, weight_bytes=1, cache_bytes=1))
        self.serve()

    def receive(self) -> Any:
        return decode_to_core(self.incoming.recv())

    def serve(self) -> None:
        while True:
            while self.incoming.poll(0 if self.running else 200):
                message = self.receive()
                match message:
                    case Submit():
                        self.submits += 1
                        if self.submits == self.script.get("nth", 1):
                            self.cue("submit")
                        self.running[message.request_id] = (message, 0)
                    case Abort(request_id=request_id):
                        self.running.pop(request_id, None)
                    case Shutdown() if not self.script.get("deaf"):
                        return
            if self.running and self.mute:
                time.sleep(0.05)
            elif self.running:
                self.send(Outputs([self.step(*entry) for entry in list(self.running.values())]))
                if self.running:  # else whoever asks next would wait for a step that has nothing to do
                    time.sleep(self.script.get("token_s", 0.001))

    def step(self, submit: Submit, done: int) -> TokenOutput:
        """In the ids of tests/tiny.py's tokenizer, of which 2 ends a text."""
        seed, answers = submit.sampling.seed, self.script.get("answers")
        ids = self.script["ids"] if seed is None or answers is None else [*answers[seed], 2]
        token = ids[done % len(ids)]
        done += 1
        stopped = ids is not self.script["ids"] and done == len(ids)
        last = stopped or done == submit.sampling.max_tokens
        if last:
            del self.running[submit.request_id]
        else:
            self.running[submit.request_id] = (submit, done)
        logprobs: tuple[TokenLogprob, ...] = ()
        if submit.sampling.logprobs is not None:
            told = self.script.get("logprob", -0.5)
            top = tuple((token + i, told - i) for i in range(submit.sampling.logprobs))
            logprobs = (TokenLogprob(token_id=token, logprob=told, top=top),)
        scores = None
        if submit.sampling.prompt_logprobs is not None and done == 1:
            scored = submit.prompt_token_ids[1:]
            scores = PromptLogprobs([-0.25] * len(scored), scored, [-0.25] * len(scored))
        return TokenOutput(
            request_id=submit.request_id,
            token_ids=(token,),
            logprobs=logprobs,
            prompt_logprobs=scores,
            finish_reason=(FinishReason.STOP if stopped else FinishReason.LENGTH) if last else None,
            stop_token_id=token if stopped else None,
            num_cached_tokens=3,
            queued_s=0.25 if done == 1 else None,
            prefill_s=0.5 if done == 1 else None,
            embedding=array("f", [0.5] * 64).tobytes() if submit.pooling is not None else None,
        )

    def beat(self) -> None:
        sender = self.context.socket(zmq.PUSH)
        sender.connect(f"ipc://{self.folder}/from-core")
        while True:
            if os.getppid() != self.parent:
                os._exit(1)
            if not self.silent:
                load = Load(
                    running=len(self.running),
                    preemptions=4,
                    cache_queries=50,
                    cache_hits=20,
                    draft_tokens=9,
                    accepted_tokens=6,
                    steps={StepKind.GRAPH: 3},
                )
                sender.send(encode(CoreBeat(where=self.where, busy_s=time.monotonic() - self.since, load=load)))
            time.sleep(self.script.get("beat_s", 0.2))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("script", type=json.loads)
    parser.add_argument("--connect", type=Path)
    parser.add_argument("--parent", type=int, required=True)
    arguments = parser.parse_args()
    core = Core(arguments.script, arguments.connect, arguments.parent)
    try:
        core.run()
    except Exception as error:  # noqa: BLE001  as the real core tells whatever ends it
        text = traceback.format_exc()
        print(text, file=sys.stderr, flush=True)
        if core.script.get("fatal", True):
            core.last_words(Fatal(exception=type(error).__name__, message=str(error), traceback=text))
        os._exit(1)


if __name__ == "__main__":
    main()
