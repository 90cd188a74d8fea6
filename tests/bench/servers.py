"""The servers that benchmarks compare, each a whole process started by its own command: `ingot serve`, `vllm serve`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.bench.load import FIRST_TOKEN_ID, Client, Load, Measured
from tests.running import INGOT, end, environment, fetch, free_port, wait_for

START_LIMIT_S = 600.0
CPU_CACHE_GIB = 2


class Server:
    """One on a free port of its own; what it prints goes to `log`."""

    def __init__(self, name: str, model: str, command: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.model = model
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._command = [*command, "--port", str(port)]
        self._variables = dict(variables)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Seconds from the start of the process to its first token over HTTP."""
        began = time.perf_counter()
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command, env=self._variables, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            wait_for(f"{self.name}'s first token", self._generates, START_LIMIT_S)
        except TimeoutError as error:
            raise RuntimeError(f"{error}:\n{self._last_words()}") from None
        return time.perf_counter() - began

    def _generates(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"{self.name} ended while it started:\n{self._last_words()}")
        body = {"model": self.model, "prompt": [FIRST_TOKEN_ID], "max_tokens": 1, "temperature": 0}
        if fetch(f"{self.url}/v1/completions", body, START_LIMIT_S)[0] == 200:
            return True
        status, answer = fetch(f"{self.url}/appliance/state")
        if status == 200 and answer["state"] in ("failed", "hung"):
            raise RuntimeError(f"{self.name} did not start: {answer['launch']['reason']}")
        return False

    def _last_words(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]

    def run(self, client: Client, load: Load, seed: object) -> Measured:
        return client.run(self.url, self.model, load, seed)

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """While it is asked by other means than `run`."""
        yield

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def processor_s(self) -> float:
        return processor_s(self.pid)

    def end(self) -> None:
        if self._process is not None:
            end(self._process)
            self._process = None


class PausedServer(Server):
    """Stopped between its loads: vLLM goes on asking for work while it has none, which takes a processor."""

    def start(self) -> float:
        taken = super().start()
        self._signal(signal.SIGSTOP)
        return taken

    def run(self, client: Client, load: Load, seed: object) -> Measured:
        with self.awake():
            return super().run(client, load, seed)

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._signal(signal.SIGCONT)
        super().end()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)


def processor_s(pid: int) -> float:
    """User and system time of a server so far, with the processes that it started, whatever their group."""
    server = psutil.Process(pid)
    times = [process.cpu_times() for process in (server, *server.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def ingot(
    home: Path,
    model: str,
    settings: Mapping[str, Any],
    cast: str | None = None,
    *,
    name: str = "Ingot",
    models: Path | None = None,
) -> Server:
    """Of a model folder in `home` or `models`; sealed in `cast` where there is one. `settings` are the profile's."""
    profile = home / "bench.json"
    profile.write_text(json.dumps({"schema": 1, "name": model, "model": {"path": model}, **settings}))
    variables = environment(home) | ({"INGOT_CAST": cast} if cast else {})
    variables |= {"INGOT_MODELS": str(models)} if models else {}
    return Server(name, model, [*INGOT, "serve", "--profile", str(profile)], variables, home / "ingot.log")


def vllm(program: str, home: Path, model: str, *arguments: str, device: str) -> Server:
    """The same model, with vLLM's defaults but for `arguments`."""
    folder = home / "models" / model
    command = [program, "serve", str(folder), "--served-model-name", model, "--host", "127.0.0.1", *arguments]
    variables = environment(home) | {"HF_HUB_OFFLINE": "1"}
    if device == "cpu":
        variables |= {"VLLM_CPU_KVCACHE_SPACE": str(CPU_CACHE_GIB), "VLLM_TARGET_DEVICE": "cpu"}
    return PausedServer("vLLM", model, command, variables, home / "vllm.log")
