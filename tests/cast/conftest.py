"""Casts for three architectures, made once, of what one small model needs."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from appliance.home import Home
from kernels.cast import environment, manifest
from tests.tiny import ALIGNED, write_checkpoint

ROOT = Path(__file__).parents[2]
ARCHITECTURES = ("sm_80", "sm_90", "sm_120")
PROFILE = "schema: 1\nname: small\nmodel: {path: small}\n"


@dataclass(frozen=True)
class Workshop:
    """A state folder with the model and its profile, and the casts made for it."""

    home: Home
    profile: Path

    def environ(self, **changes: str) -> dict[str, str]:
        """Of a process that really compiles: no interpreter."""
        ours = {"INGOT_HOME": str(self.home.root), "PYTHONPATH": str(ROOT)}
        return {name: value for name, value in os.environ.items() if not environment.is_ours(name)} | ours | changes

    def start(self, *arguments: str, **changes: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", *arguments],
            env=self.environ(**changes),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **changes)
        out, err = process.communicate(timeout=150)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def cast_command(self, architecture: str, folder: Path) -> list[str]:
        return [
            "appliance.cast", "cast", "--arch", architecture, "--out", str(folder),
            "--profile", str(self.profile), "--jobs", "1", "--triton-only",
        ]  # fmt: skip

    def sealed(self, cast: Path, *misuses: str, **changes: str) -> dict[str, Any]:
        """What a process that is sealed to `cast` found; see `sealed_process`."""
        done = self.run("tests.cast.sealed_process", str(cast), str(self.profile), *misuses, **changes)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    home = Home.at(tmp_path_factory.mktemp("workshop") / "home").create()
    write_checkpoint(home.models / "small", dtype="bfloat16", **ALIGNED)
    profile = home.root / "small.yaml"
    profile.write_text(PROFILE)
    return Workshop(home, profile)


@pytest.fixture(scope="session")
def casts(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> dict[str, Path]:
    """By architecture, made by the first of pytest's processes that needs them. Not to be changed: copy one first."""
    ours = tmp_path_factory.getbasetemp()
    place = (ours if worker_id == "master" else ours.parent) / "casts"
    place.mkdir(exist_ok=True)
    folders = {name: place / name for name in ARCHITECTURES}
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lacking = {name: folder for name, folder in folders.items() if not (folder / manifest.NAME).exists()}
        processes = [workshop.start(*workshop.cast_command(name, folder)) for name, folder in lacking.items()]
        for process in processes:
            _, errors = process.communicate(timeout=170)
            assert process.returncode == 0, errors
    return folders
