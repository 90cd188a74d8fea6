"""The nvcc beside vLLM is that of the CUDA whose headers its torch brings."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_its_pins_are_those_of_the_casts_compiler() -> None:
    lists = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ingot"]["image"]
    constraints = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    pins = dict(pin.split("==") for pin in lists["vllm-cuda"])
    pins.pop("vllm")
    assert pins == {name: constraints[name] for name in lists["nvcc"] if name.startswith("nvidia-")}
