"""The source files that compiled kernels depend on, found without importing them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_DECORATOR = re.compile(rb"^@triton\.jit", re.MULTILINE)


def files(room: Path) -> list[Path]:
    """Every file in the package `room` that holds kernels, or constants that a kernel uses directly or indirectly."""
    found: set[Path] = set()
    for path in sorted(room.rglob("*.py")):
        text = path.read_bytes()
        if _DECORATOR.search(text):
            found.add(path)
            tree = ast.parse(text)
            used = {node.id for kernel in _kernels(tree) for node in ast.walk(kernel) if isinstance(node, ast.Name)}
            for name, module in _imports(tree, path, room):
                if name in used:
                    _with_imports(module, room, found)
    return sorted(found)


def _with_imports(path: Path, room: Path, found: set[Path]) -> None:
    text = path.read_bytes()
    if path in found or _DECORATOR.search(text):  # in a file with kernels, only what these use
        return
    found.add(path)
    for _, module in _imports(ast.parse(text), path, room):
        _with_imports(module, room, found)


def _kernels(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and any("triton.jit" in ast.unparse(mark) for mark in node.decorator_list):
            yield node


def _imports(tree: ast.Module, path: Path, room: Path) -> Iterator[tuple[str, Path]]:
    """The names a module imports from the package, each with its original name and file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if module := _file(alias.name.split("."), room):
                    yield alias.asname or alias.name.partition(".")[0], module
        elif isinstance(node, ast.ImportFrom):
            base = list(path.relative_to(room.parent).parts[: -node.level]) if node.level else []
            base += node.module.split(".") if node.module else []
            for alias in node.names:
                if module := _file([*base, alias.name], room) or _file(base, room):
                    yield alias.asname or alias.name, module


def _file(parts: list[str], room: Path) -> Path | None:
    """The file of the module `parts`; None if the package has no such module."""
    if not parts or parts[0] != room.name:
        return None
    place = room.joinpath(*parts[1:])
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)
