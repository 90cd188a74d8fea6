"""Where failures happen: the environment and the state folder of an appliance."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.running import temporary_home

RECORDINGS = Path(__file__).parents[2] / "hardware" / "recordings"
HOOK = Path(__file__).with_name("hook")


class Unavailable(RuntimeError):
    """This machine does not let the place be made; the text says why."""


@dataclass(frozen=True)
class Place:
    """`variables` are of the environment; `disk` is the size of a file system of its own for the state folder."""

    variables: dict[str, str] = field(default_factory=dict)
    disk: str = ""

    @contextlib.contextmanager
    def home(self) -> Iterator[Path]:
        with temporary_home() as home:
            if not self.disk:
                yield home
                return
            if os.geteuid() != 0:
                raise Unavailable("only root can mount a small file system")
            home.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", f"size={self.disk}", "tmpfs", str(home)]
            mounted = subprocess.run(command, capture_output=True, text=True)
            if mounted.returncode:
                raise Unavailable(f"a small file system cannot be mounted: {mounted.stderr.strip()}")
            try:
                yield home
            finally:
                subprocess.run(["umount", "--lazy", str(home)], check=True)


def _machine(recording: str) -> str:
    return str(RECORDINGS / f"{recording}.json")


PLACES: dict[str, Place] = {
    "plain": Place(),
    "two GPUs": Place({
        "INGOT_HARDWARE": _machine("rtx-pro-6000-x2"),
        "INGOT_JIT": "1",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }),
    "eight GPUs": Place({"INGOT_HARDWARE": _machine("h200-x8"), "INGOT_JIT": "1"}),
    "MIG slices": Place({"INGOT_HARDWARE": _machine("h100-mig-one-of-two"), "INGOT_JIT": "1"}),
    "an old GPU": Place({"INGOT_HARDWARE": _machine("old-driver"), "INGOT_JIT": "1"}),
    "small disk": Place(disk="64m"),
}  # fmt: skip
