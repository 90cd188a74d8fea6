"""The cast stage of the Dockerfile copies every module that casting imports; a missing one shows only in GPU builds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def copied(stage: str) -> list[str]:
    """The paths of the checkout that a stage of the Dockerfile copies."""
    text = re.search(rf"^FROM \S+ AS {stage}$(.*?)(?=^FROM |\Z)", (ROOT / "Dockerfile").read_text(), re.DOTALL | re.M)
    assert text is not None
    lines = re.findall(r"^COPY (?!--)(.+)$", text[1], re.M)
    return [path for line in lines for path in line.split()[:-1]]


def test_the_cast_stage_has_all_that_a_cast_imports(tmp_path: Path) -> None:
    for path in copied("cast"):
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / path).is_dir():
            shutil.copytree(ROOT / path, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / path, target)
    # Without `site` the editable checkout is not on the path; its libraries are put there by hand.
    libraries = [place for place in sys.path if place.endswith("-packages")]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *libraries])}
    program = "import appliance.cast.__main__ as cast; print(cast.__file__)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().startswith(str(tmp_path))
