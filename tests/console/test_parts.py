"""`console.parts`: each part that a handler may ask for is documented, provided and asked for."""

import ast
import re
from pathlib import Path

import console
from console import parts

ROOT = Path(console.__file__).parent
TYPES = set(re.findall(r"^(\w+) = NamedDependency\[", Path(parts.__file__).read_text(), re.M))


def test_each_part_has_one_row_in_the_table():
    assert sorted(re.findall(r"^\| (\w+) \| (?!parameter)\w+ \|", parts.__doc__, re.M)) == sorted(TYPES)


def test_each_part_is_asked_for_by_some_handler():
    imported = {
        alias.name
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "console.parts"
        for alias in node.names
    }
    assert TYPES
    assert imported >= TYPES
