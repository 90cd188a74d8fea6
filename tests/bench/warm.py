"""Start to first token of one model on fresh state folders: vLLM as its own command starts it (its engine's process is
spawned, and imports everything again), vLLM as Ingot starts it with the cache pack that the first start leaves, the
native engine, and vLLM with the pack where compiling is forbidden. All run behind Ingot's front door; INGOT_VLLM names
vLLM's command. During each start its processes are watched for compilers, and afterwards its caches are compared with
the pack. The disk's cache is warm for all of them: that is not what a pack saves.

Usage: python -m tests.bench.warm [--shape llama-27m] [--device cpu]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from appliance.engine_process.process_tree import descendants
from appliance.vllm.cache_packs.pack import read_pack
from appliance.vllm.command_line import MULTIPROCESSING
from appliance.vllm.no_jit.watch import compiler_at
from tests.bench import shapes
from tests.bench.servers import Server
from tests.bench.table import Figure, conclude, describe_machine
from tests.running import INGOT, environment, exit_on_term, temporary_home

SHARE_OF_COLD: Final = 1 / 3
CONTEXT: Final = 2048
CODE: Final = (".so", ".cubin", ".ptx", ".cpp", ".cu")
LOOK_EVERY_S: Final = 0.05
NATIVE_S: Final = 20.0  # the most that the native engine may need, where time is short
SHOWN: Final = 12
# What vLLM itself says of its start.
TELLING: Final = re.compile(r"took|takes|[Dd]irectly load|saved AOT|Cache the graph|jit_monitor|Unable|unable|fail")


class Started(NamedTuple):
    """Seconds to the first token; each command of a compiler that ran; each file that is in no pack."""

    seconds: float
    compilers: list[str]
    new_files: list[str]

    @property
    def new_code(self) -> list[str]:
        """The driver keeps what it compiles in files without a suffix."""
        return [path for path in self.new_files if path.endswith(CODE) or path.startswith("cuda/")]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=sorted(shapes.SHAPES), default="llama-27m")
    parser.add_argument("--layers", type=int, help="Cut the model to so many layers.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--keep", type=Path, help="Keep the launches' logs in this folder.")
    parser.add_argument("--seconds", type=float, default=3600, help="Leave out starts that would end later.")
    options = parser.parse_args()
    if not os.environ.get("INGOT_VLLM"):
        parser.error("INGOT_VLLM is not set: name vLLM's command in it (python tests/vllm/install.py installs one)")
    return options


def main() -> int:
    options = parse()
    exit_on_term()
    ends = time.monotonic() + options.seconds
    describe_machine()
    with temporary_home() as folder:
        shape = shapes.SHAPES[options.shape]
        shapes.write(folder / "models" / "model", shape.with_layers(options.layers) if options.layers else shape)
        bench = Bench(folder, options)
        cold = bench.start("cold", "vllm", vllm={"environment": {MULTIPROCESSING: "spawn"}})
        bench.make_pack()
        warm = bench.start("warm", "vllm")
        figures = [
            Figure("vllm_cold_s", "vLLM, start to first token", [cold.seconds], None),
            Figure("vllm_with_pack_s", "vLLM with the pack", [warm.seconds], None),
            Figure("pack_share", "with the pack, of cold", [warm.seconds / cold.seconds], SHARE_OF_COLD, unit="x"),
            Figure("compilers_without_pack", "compilers run without the pack", [float(len(cold.compilers))], None, ""),
            Figure("compilers_with_pack", "compilers run with the pack", [float(len(warm.compilers))], 0, ""),
            Figure("code_with_pack", "files of code made with the pack", [float(len(warm.new_code))], 0, ""),
        ]
        if (options.device == "cpu" or "INGOT_CAST" in os.environ) and ends - time.monotonic() > NATIVE_S:
            figures.append(Figure("native_s", "native engine", [bench.start("native", "native").seconds], None))
        if ends - time.monotonic() > 1.3 * warm.seconds:
            forbidden = bench.start("forbidden", "vllm", jit="forbid")
            figures.append(Figure("vllm_forbidden_s", "vLLM with the pack, jit: forbid", [forbidden.seconds], None))
    return conclude(figures)


class Bench:
    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._folder, self._options = folder, options
        self._pack = folder / "packs" / "bench"

    def profile(self, name: str, engine: str, **settings: Any) -> Path:
        document: dict[str, Any] = {"schema": 1, "name": "bench", "model": {"path": "model"}, "engine": engine,
                                    "max-model-len": CONTEXT, **settings}  # fmt: skip
        if self._options.device == "cpu":
            document |= {"device": "cpu", "kv-cache-memory-bytes": "1 GiB"}
        path = self._folder / f"{name}.json"
        path.write_text(json.dumps(document))
        return path

    def start(self, name: str, engine: str, **settings: Any) -> Started:
        home = self._folder / name
        home.mkdir(exist_ok=True)
        command = [*INGOT, "serve", "--profile", str(self.profile(name, engine, **settings))]
        server = Server(name, "bench", command, self._variables(home), self._folder / f"{name}.log")
        try:
            with Watch() as watch:
                seconds = server.start()
        finally:
            server.end()
            self._keep(home, name)
        started = Started(seconds, watch.seen, self._new_files(home))
        self._describe(name, home, started)
        return started

    def _describe(self, name: str, home: Path, started: Started) -> None:
        print(f"{name}: first token {started.seconds:.2f} s after its start", flush=True)
        [launch] = (home / "launches").iterdir()
        for phase in json.loads((launch / "launch.json").read_text())["phases"]:
            print(f"    {phase['phase']:12} {phase.get('seconds', 0.0):7.2f} s")
        log = (launch / "engine.log").read_text(errors="replace").splitlines()
        for line in [line for line in log if TELLING.search(line)][:SHOWN]:
            print(f"    | {line[:200]}")
        for what, found in (("compilers", started.compilers), ("new files", started.new_files),
                            ("new code", started.new_code)):  # fmt: skip
            print(f"    {what}: {len(found)}", flush=True)
            if name != "cold":
                print("".join(f"        {line[:200]}\n" for line in found[:SHOWN]), end="", flush=True)

    def make_pack(self) -> None:
        """Of the cold start."""
        profile = self._folder / "cold.json"
        command = [*INGOT, "cache", "pack", "--profile", str(profile), "--out", str(self._pack)]
        subprocess.run(command, env=self._variables(self._folder / "cold"), check=True)

    def _new_files(self, home: Path) -> list[str]:
        """That are not the pack's, if there is one by now."""
        packed = {file.path for file in read_pack(self._pack).pack.files} if self._pack.exists() else set()
        return sorted(str(path) for caches in (home / "caches").glob("vllm*") for path in _files(caches)
                      if str(path) not in packed)  # fmt: skip

    def _variables(self, home: Path) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("INGOT_VLLM", "INGOT_CAST") if name in os.environ}
        ours = {"INGOT_MODELS": str(self._folder / "models"), "INGOT_CACHE_PACKS": str(self._pack.parent)}
        return environment(home) | kept | ours

    def _keep(self, home: Path, name: str) -> None:
        if self._options.keep is not None:
            self._options.keep.mkdir(parents=True, exist_ok=True)
            for log in (home / "launches").glob("*/engine.log"):
                (self._options.keep / f"{name}.log").write_bytes(log.read_bytes())


class Watch:
    """Looks at the processes below this one for compilers that are given something to compile."""

    def __init__(self) -> None:
        self._seen: dict[int, str] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    @property
    def seen(self) -> list[str]:
        return list(self._seen.values())

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            for pid in descendants(os.getpid()):
                if (found := compiler_at(pid)) is not None:
                    self._seen.setdefault(pid, found.command)


def _files(folder: Path) -> list[Path]:
    """Below `folder`, relative to it, but for locks."""
    found = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return [path for path in found if path.suffix != ".lock" and "locks" not in path.parts]


if __name__ == "__main__":
    sys.exit(main())
