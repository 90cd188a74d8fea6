"""Stages of the Dockerfile that run a part of Ingot copy every module that it imports; a missing one shows only in
builds for GPUs or with vLLM."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def copied(stage: str) -> list[str]:
    """The paths of the checkout that a stage of the Dockerfile copies."""
    text = re.search(rf"^FROM \S+ AS {stage}$(.*?)(?=^FROM |\Z)", (ROOT / "Dockerfile").read_text(), re.DOTALL | re.M)
    assert text is not None
    lines = re.findall(r"^COPY (?!--)(.+)$", text[1], re.M)
    return [path for line in lines for path in line.split()[:-1]]


@pytest.mark.parametrize(
    ("stage", "program"),
    [
        ("cast", "appliance.cast.__main__"),
        ("vllm-modules", "appliance.image.vllm_modules"),
        ("vllm-raise-sites", "appliance.diagnosis.raise_sites.__main__"),
    ],
)
def test_a_stage_has_all_that_its_program_imports(tmp_path: Path, stage: str, program: str) -> None:
    for path in copied(stage):
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / path).is_dir():
            shutil.copytree(ROOT / path, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / path, target)
    # Without `site` the editable checkout is not on the path; its libraries are put there by hand.
    libraries = [place for place in sys.path if place.endswith("-packages")]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *libraries])}
    code = f"import {program} as program; print(program.__file__)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().startswith(str(tmp_path))
