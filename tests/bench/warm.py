"""Start to first token of one model on fresh state folders: vLLM as it comes, vLLM with the cache pack that this start
leaves, and the native engine. All three run behind Ingot's front door; INGOT_VLLM names vLLM's command.

Usage: python -m tests.bench.warm [--shape llama-27m] [--device cpu]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.bench import shapes
from tests.bench.servers import Server
from tests.bench.table import Figure, conclude, describe_machine
from tests.running import INGOT, environment, temporary_home

SHARE_OF_COLD = 1 / 3
CONTEXT = 2048
CODE = (".so", ".cubin", ".ptx", ".cpp", ".cu")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=sorted(shapes.SHAPES), default="llama-27m")
    parser.add_argument("--layers", type=int, help="Cut the model to so many layers.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--keep", type=Path, help="Keep the launches' logs and records in this folder.")
    options = parser.parse_args()
    if not os.environ.get("INGOT_VLLM"):
        parser.error("INGOT_VLLM is not set: name vLLM's command in it (python tests/vllm/install.py installs one)")
    describe_machine()
    with temporary_home() as folder:
        shape = shapes.SHAPES[options.shape]
        shapes.write(folder / "models" / "model", shape.with_layers(options.layers) if options.layers else shape)
        bench = Bench(folder, options)
        cold, compiled = bench.start("cold", "vllm")
        bench.make_pack()
        print(
            f"the pack: {sum(1 for _ in bench.pack.rglob('*'))} files and folders, {compiled} of them code", flush=True
        )
        warm, compiled_warm = bench.start("warm", "vllm")
        sealed = options.device == "cpu" or "INGOT_CAST" in os.environ
        native = [bench.start("native", "native")[0]] if sealed else []
    return conclude([
        Figure("vllm_cold_s", "vLLM, start to first token", [cold], None),
        Figure("vllm_with_pack_s", "vLLM with the pack", [warm], None),
        *([Figure("native_s", "native engine", native, None)] if native else []),
        Figure("pack_share", "with the pack, of cold", [warm / cold], SHARE_OF_COLD, unit="x"),
        Figure("compiled_with_pack", "files of code compiled with the pack", [float(compiled_warm)], 0, unit=""),
    ])  # fmt: skip


class Bench:
    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._folder, self._options = folder, options
        self.pack = folder / "packs" / "bench"

    def profile(self, name: str, engine: str) -> Path:
        document: dict[str, Any] = {"schema": 1, "name": "bench", "model": {"path": "model"}, "engine": engine,
                                    "max-model-len": CONTEXT}  # fmt: skip
        if self._options.device == "cpu":
            document |= {"device": "cpu", "kv-cache-memory-bytes": "1 GiB"}
        path = self._folder / f"{name}.json"
        path.write_text(json.dumps(document))
        return path

    def start(self, name: str, engine: str) -> tuple[float, int]:
        """Seconds to the first token, and how many files of code were compiled meanwhile."""
        home = self._folder / name
        home.mkdir(exist_ok=True)
        command = [*INGOT, "serve", "--profile", str(self.profile(name, engine))]
        server = Server(name, "bench", command, self._variables(home), self._folder / f"{name}.log")
        try:
            taken = server.start()
        finally:
            server.end()
            self._keep(home, name)
        print(f"{name}: first token {taken:.2f} s after its start", flush=True)
        [launch] = (home / "launches").iterdir()
        record = json.loads((launch / "launch.json").read_text())
        for phase in record["phases"]:
            print(f"    {phase['phase']:12} {phase.get('seconds', 0.0):7.2f} s", flush=True)
        packed = {path.relative_to(self.pack / "files") for path in _code(self.pack)}
        made = {path.relative_to(caches) for caches in (home / "caches").glob("vllm*") for path in _code(caches)}
        return taken, len(made - packed if name == "warm" else made)

    def make_pack(self) -> None:
        command = [*INGOT, "cache", "pack", "--profile", str(self.profile("cold", "vllm")), "--out", str(self.pack)]
        subprocess.run(command, env=self._variables(self._folder / "cold"), check=True)

    def _variables(self, home: Path) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("INGOT_VLLM", "INGOT_CAST") if name in os.environ}
        ours = {"INGOT_MODELS": str(self._folder / "models"), "INGOT_CACHE_PACKS": str(self.pack.parent)}
        return environment(home) | kept | ours

    def _keep(self, home: Path, name: str) -> None:
        if self._options.keep is not None:
            for path in (home / "launches").glob("*/*.*"):
                if path.is_file():
                    target = self._options.keep / name / path.name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(path.read_bytes())


def _code(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.suffix in CODE and "locks" not in path.parts]


if __name__ == "__main__":
    sys.exit(main())
