"""What every test may use: a fresh state folder, and nothing of this machine's own Ingot."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import pytest

from appliance.home import Home

# Triton's own library is interpreted or compiled as this says when it is first imported, which may be by anyone's test.
os.environ.setdefault("TRITON_INTERPRET", "1")
# As many test processes run as there are cores: the threads of a matrix product would only wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Hundreds of processes are started: a module is compiled once, and not in each of them, as images of Python have it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_collection_finish() -> None:
    """What was imported and collected stays: the garbage collector need not go through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_ingot_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tests never see, or touch, the state folder of the person who runs them."""
    monkeypatch.setenv("INGOT_HOME", str(tmp_path / "ingot-home"))
    for name in ("INGOT_MODELS", "INGOT_CAST", "INGOT_JIT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A fresh state folder."""
    return Home.at(tmp_path / "ingot-home").create()
