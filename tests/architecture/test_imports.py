"""What keeps the house standing: imports run one way, and what must start in a moment imports nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "triton", "numpy")
TRAINING = ("appliance.selftest.train", "appliance.selftest.score")
LIGHT = [
    "appliance.cli",
    "appliance.explain.explain_command",
    "appliance.preflight.check_command",
    "appliance.serving.serve_command",
    "appliance.supervisor",
    "appliance.engine_process",
    "appliance.engine_client",
    "appliance.vllm",
    "appliance.selftest.selftest_command",
    "console.up_command",
    "console.app",
    "console.profiles.profile_command",
    "console.logs.logs_command",
]


@pytest.mark.parametrize("module", LIGHT)
def test_what_must_start_in_a_moment_imports_no_torch(module):
    """The front door, the checks and the console: the module and all its package, as a process loads them."""
    package = module.rpartition(".")[0] if module.endswith(("_command", ".app", ".cli")) else module
    code = f"""
import importlib, pkgutil, sys
importlib.import_module({module!r})
package = importlib.import_module({package!r})
for found in pkgutil.walk_packages(package.__path__, {package!r} + "."):
    if {package!r} == "appliance" or found.name in {TRAINING!r}:
        continue
    importlib.import_module(found.name)
heavy = [name for name in {HEAVY!r} if name in sys.modules]
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_every_command_of_the_entry_point_group_loads_and_has_help():
    points = list(metadata.entry_points(group="ingot.commands"))
    assert {point.name for point in points} >= {"check", "logs", "profile", "selftest", "serve", "up"}
    for point in points:
        assert point.load().help, f"ingot {point.name} has no help"
        module = point.module.rpartition(".")[2]
        assert module in (point.name, f"{point.name}_command"), f"ingot {point.name} cannot be found by its name"


def test_the_import_contracts_hold():
    """The rules of pyproject.toml, as `make lint` runs them."""
    subprocess.run([Path(sys.executable).with_name("lint-imports")], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def python_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split() if (ROOT / name).exists()]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="reads the list of files from git")
def test_every_module_says_what_it_is_for_and_stays_readable_in_one_sitting():
    for path in python_files():
        source = path.read_text()
        assert len(source.splitlines()) <= 500, f"{path} is too long to be read in one sitting"
        if source.strip() and "versions" not in path.parts:
            assert ast.get_docstring(ast.parse(source)), f"{path} does not say what it is for"


def test_every_server_of_ours_has_the_limits_of_one_place():
    """Front door and console run the same server: its limits on slow clients hold for both."""
    product = [path for room in ("appliance", "console") for path in (ROOT / room).rglob("*.py")]
    users = {path.relative_to(ROOT).as_posix() for path in product if _imports(path, "uvicorn")}
    assert users == {"appliance/serving/http_protocol.py", "appliance/serving/http_server.py"}


def _imports(path: Path, package: str) -> bool:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return any(name.split(".")[0] == package for name in names)
