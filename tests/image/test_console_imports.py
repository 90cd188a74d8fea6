"""The console's image has all that the console imports: what it is built without is refused here too."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENGINE_ONLY = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ingot"]["image"]["engine-only"]
# Of a distribution, where its package has another name.
PACKAGES = {"prometheus-client": "prometheus_client", "py-spy": "py_spy", "pyzmq": "zmq"}

REFUSING = """
import importlib, pkgutil, sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refused())
import console
for module in pkgutil.walk_packages(console.__path__, "console."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


def test_nothing_that_is_only_the_engines_is_imported() -> None:
    program = REFUSING.format(absent={PACKAGES.get(name, name) for name in ENGINE_ONLY})
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
