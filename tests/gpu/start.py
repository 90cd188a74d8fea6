"""`tests/gpu/start.sh`: cold starts of `ingot serve` on a GPU, phase by phase, beside what the machine can do.

`start to first token` is from the start of the process to its first token over HTTP, the weights in the system's cache
of files. Host memory is the core's own, without the pages of files that it maps, sampled while it starts.
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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from appliance.checkpoint.safetensors import read_index
from appliance.home import Home
from tests.bench import shapes
from tests.bench.servers import Server, ingot
from tests.bench.shapes import SHAPES
from tests.bench.table import Figure, conclude, describe_machine
from tests.gpu.bench.loading_rates import drop_from_cache
from tests.running import exit_on_term, fetch, temporary_home, wait_for

SAMPLE_S = 0.01
CONTEXT = 9216  # as peer.sh plans it
GB = 1e9


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.start", description=__doc__)
    parser.add_argument("--shape", default="qwen3-8b", choices=SHAPES)
    parser.add_argument("--layers", type=int, help="fewer than the shape has")
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"), help="cpu: only to try this program")
    parser.add_argument(
        "--arch", default="sm_90", help="what the kernels are cast for, where INGOT_GPU_CAST names none"
    )
    parser.add_argument("--memory", type=float, default=0.45, help="the share of the GPU's memory")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--from-disk", action="store_true", help="and one of files that are not in the system's cache")
    options = parser.parse_args()
    exit_on_term()
    describe_machine()
    on_gpu = options.device == "cuda"
    shape = SHAPES[options.shape].with_layers(options.layers) if options.layers else SHAPES[options.shape]
    settings: dict[str, Any] = {"device": "cpu", "max-model-len": 2048}
    if on_gpu:
        settings = {"gpu-memory-utilization": options.memory, "max-model-len": CONTEXT}
    with temporary_home() as folder:
        home = Home.at(folder).create()
        given = os.environ.get("INGOT_GPU_CAST")
        cast = Path(given) if given else home.root / "cast"
        server = ingot(home.root, options.shape, settings, str(cast) if on_gpu else None)
        model = home.models / options.shape
        began = time.monotonic()
        with ThreadPoolExecutor() as pool:
            written = pool.submit(shapes.write, model, shape)
            if on_gpu and not given:
                wait_for("the model's config", (model / "config.json").exists)
                make_cast(home, cast, options.arch)
            written.result()
        index = read_index(model)
        print(
            f"{options.shape}, {index.total_bytes / GB:.1f} GB, made after {time.monotonic() - began:.0f} s", flush=True
        )
        rates = measured_rates(index.files) if on_gpu else {}
        starts = [Start.of(server, home) for _ in range(options.starts)]
        from_disk = None
        if options.from_disk:
            drop_from_cache(index.files)
            from_disk = Start.of(server, home)
    largest = max(entry.end - entry.begin for entry in index.tensors.values())
    return conclude(*figures(starts, rates, largest, from_disk))


def make_cast(home: Home, cast: Path, arch: str) -> None:
    """Of the kernels of the benchmark's model, in a process that sees no GPU."""
    command = [sys.executable, "-m", "appliance.cast", "cast", "--arch", arch, "--out", str(cast), "--triton-only"]
    variables = os.environ | {"CUDA_VISIBLE_DEVICES": "", "INGOT_HOME": str(home.root)}
    subprocess.run([*command, "--profile", str(home.root / "bench.json")], env=variables, check=True)


def measured_rates(files: Sequence[Path]) -> dict[str, float]:
    """GB/s, measured in a process of its own, so that this one holds nothing of the GPU."""
    command = [sys.executable, "-m", "tests.gpu.bench.loading_rates", *map(str, files)]
    rates: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(", ".join(f"{name} {rate:.1f} GB/s" for name, rate in rates.items()), flush=True)
    return rates


class Start(NamedTuple):
    first_token_s: float
    phases: dict[str, float]  # seconds of each
    weight_rate: float  # GB/s, by the core's log
    peak_bytes: int

    @classmethod
    def of(cls, server: Server, home: Home) -> Start:
        began, sampler = time.time(), Sampler(lambda: server.pid)
        try:
            taken = server.start()
            record = fetch(f"{server.url}/appliance/state")[1]["launch"]
        finally:
            peak = sampler.stop()
            server.end()
        log = home.launch(record["id"]).joinpath("engine.log").read_text()
        print(
            f"\nfirst token after {taken:.2f} s, ready after {record['ready_after_s']:.2f} s, peak {peak / GB:.2f} GB"
        )
        for phase in record["phases"]:
            print(f"  {phase['phase']:<12} at {phase['started'] - began:6.2f} s for {phase.get('seconds', 0):6.2f} s")
        print("  " + log.replace("\n", "\n  "), flush=True)
        rate = re.search(r"GB of weights in \S+ s, (\S+) GB/s", log)
        assert rate, "the core did not log how fast its weights came"
        phases = {phase["phase"]: phase.get("seconds", 0.0) for phase in record["phases"]}
        return cls(taken, phases, float(rate[1]), peak)


class Sampler:
    """The most memory of its own that the core of a front door has had: what is pinned, too, and no mapped files."""

    def __init__(self, front_door: Callable[[], int]) -> None:
        self._front_door = front_door
        self._peak = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        self._stopping.set()
        self._thread.join()
        return self._peak

    def _run(self) -> None:
        core: psutil.Process | None = None
        while not self._stopping.wait(SAMPLE_S):
            try:
                core = core or self._core()
                if core is not None:
                    self._peak = max(self._peak, own_bytes(core.pid))
            except (AssertionError, OSError, psutil.Error):  # not yet started, or ended
                core = None

    def _core(self) -> psutil.Process | None:
        children = psutil.Process(self._front_door()).children()
        return next((each for each in children if "appliance.engine" in each.cmdline()), None)


def own_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return sum(1024 * int(size) for size in re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", status, re.MULTILINE))


def figures(
    starts: Sequence[Start], rates: Mapping[str, float], largest: int, from_disk: Start | None = None
) -> tuple[list[Figure], list[Figure]]:
    """Those with goals, and the rates beside them. `largest` is the largest tensor, in bytes."""
    weights = [start.weight_rate for start in starts]
    above = [(start.peak_bytes - largest) / GB for start in starts]
    shown = [
        Figure("first_token_s", "start to first token", [start.first_token_s for start in starts], 6.0),
        Figure("host_peak_above_largest_tensor_gb", "host memory above the largest tensor", above, 2.0, "GB"),
        Figure("weights_gb_per_s", "weights to the GPU", weights, None, "GB/s", at_least=True),
    ]
    if rates:
        ratios = [rate / min(rates["cache"], rates["bus"]) for rate in weights]
        what = "the same, of the slower of cache and bus"
        shown.append(Figure("weights_of_slower", what, ratios, 0.8, "x", at_least=True))
        if from_disk is not None:
            ratio = from_disk.weight_rate / min(rates["disk"], rates["bus"])
            what = "from the disk, of the slower of disk and bus"
            shown.append(Figure("weights_from_disk_of_slower", what, [ratio], 0.8, "x", at_least=True))
    for name in starts[0].phases:
        key = re.sub(r"\W", "_", name)
        shown.append(Figure(f"phase_{key}_s", name, [start.phases[name] for start in starts], None))
    return shown, [Figure(f"{name}_gb_per_s", name, [rate], None, "GB/s") for name, rate in rates.items()]


if __name__ == "__main__":
    sys.exit(main())
