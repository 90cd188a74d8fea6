"""A worker of a cast, from the parent's side: started on first use, and again after a crash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec

from kernels.cast import environment
from kernels.cast.architectures import Architecture
from kernels.cast.words import Answer
from kernels.variants import Variant

_LOG_TAIL = 600  # characters of a crashed worker's output that are shown


class WorkerProcess:
    """Compiles one variant at a time. `compile` is called by one thread; `end` may be called by another."""

    def __init__(self, architecture: Architecture, out: Path, work: Path, number: int) -> None:
        scratch = work / f"worker-{number}"
        self._log = work / f"worker-{number}.log"
        self._command = [
            sys.executable, "-m", "kernels.cast.worker",
            "--arch", architecture.name, "--out", str(out), "--scratch", str(scratch),
        ]  # fmt: skip
        hidden = {"CUDA_VISIBLE_DEVICES": "", "TRITON_LIBCUDA_PATH": str(work), "TMPDIR": str(work)}
        self._environment = environment.without_conflicts(os.environ) | hidden
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._ended = False

    def compile(self, variant: Variant) -> Answer:
        with self._lock:
            if self._ended:
                return Answer(error="the cast was ended")
            if self._process is None:
                self._process = self._start()
            process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(variant) + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if line.endswith(b"\n"):
            return msgspec.json.decode(line, type=Answer)
        self._process = None
        return Answer(error=f"the compiler process {_ending(process.wait())}. {self._last_words()}".rstrip())

    def end(self) -> None:
        with self._lock:
            self._ended = True
            process = self._process
        if process is not None:
            process.kill()
            process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )

    def _last_words(self) -> str:
        return self._log.read_text(errors="replace")[-_LOG_TAIL:].strip()


def _ending(status: int) -> str:
    if status >= 0:
        return f"exited with status {status}"
    number = -status
    why = " (possibly out of memory)" if number == signal.SIGKILL else ""
    return f"was killed by signal {signal.Signals(number).name}{why}"
