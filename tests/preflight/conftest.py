"""What checks look at: a small model, a vLLM, and a machine with nothing wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.home import Home
from appliance.preflight import Surroundings
from tests.preflight.machines import install, sane, vllm
from tests.tiny import write_checkpoint


@pytest.fixture
def model(home: Home) -> None:
    """The one that `machines` has profiles of."""
    write_checkpoint(home.models / "tiny", dtype="bfloat16", head_dim=64)


@pytest.fixture
def program(tmp_path: Path) -> dict[str, str]:
    """The variable that names a vLLM."""
    return {"INGOT_VLLM": str(vllm(tmp_path / "vllm"))}


@pytest.fixture
def around(tmp_path: Path) -> Surroundings:
    return sane(tmp_path / "root", install(tmp_path / "native", flashinfer_python="0.6.13"))
