"""The files of a launch have their names in one place, so that everything reads them through `appliance.launches`."""

import ast
from pathlib import Path

import pytest

from appliance.launches import folder

ROOT = Path(__file__).resolve().parents[2]
NAMES = {folder.EVENTS, folder.LOG, folder.RECORD, folder.DIAGNOSIS, folder.STACKS, folder.COMPILED}


def modules():
    return [path for room in ("appliance", "console") for path in (ROOT / room).rglob("*.py")]


def names_in(path: Path) -> set[str]:
    tree = ast.walk(ast.parse(path.read_text()))
    return {node.value for node in tree if isinstance(node, ast.Constant) and node.value in NAMES}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_only_the_launch_folder_names_its_files(name):
    assert [path.relative_to(ROOT).as_posix() for path in modules() if name in names_in(path)] == [
        "appliance/launches/folder.py"
    ]
