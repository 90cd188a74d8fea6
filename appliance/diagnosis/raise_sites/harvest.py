"""Reads from an engine's source, without importing it, where it raises, asserts and logs errors, with which words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from appliance.diagnosis.raise_sites.site import SPACE, Kind, RaiseSite

MAX_PART = 200
MAX_PARTS = 12
MAX_NAMES = 12
LOGGED: Final = ("error", "critical", "exception", "fatal")
EXITS: Final = {"sys.exit": "SystemExit", "parser.error": "", "self.error": ""}
PERCENT = re.compile(r"%(?:\((?P<name>\w{1,60})\))?[-+ #0]{0,5}[\d.*]{0,8}[a-zA-Z]")
BRACES = re.compile(r"\{(?P<name>\w{0,60})[^{}]{0,60}\}")
ADDED_TEXT: Final = ("strip", "format", "dedent", "cleandoc")

NO_VALUES: Final = ("self", "cls", "len", "isinstance", "any", "all", "not", "str", "int", "float", "bool", "type")

Pieces = list[str | None]
"""Of a message: literal text, and None with the name of a value after it."""


def harvest(package: Path) -> Iterator[RaiseSite]:
    """In the order of the files. One that this Python cannot parse is left out."""
    for path in sorted(package.rglob("*.py")):
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue
        yield from _SiteFinder(path.relative_to(package.parent).as_posix()).sites_in(tree)


class _SiteFinder:
    """Walks one module with the scopes that it is in."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._scope: list[str] = []
        self._texts: list[dict[str, ast.expr]] = [{}]
        self._tests: list[ast.expr] = []

    def sites_in(self, node: ast.AST) -> Iterator[RaiseSite]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                self._scope.append(child.name)
                self._texts.append({})
                around, self._tests = self._tests, []
                yield from self.sites_in(child)
                self._tests = around
                self._texts.pop()
                self._scope.pop()
                continue
            if isinstance(child, ast.If):
                self._tests.append(child.test)
                yield from self.sites_in(child)
                self._tests.pop()
                continue
            if isinstance(child, ast.Assign) and isinstance(child.targets[0], ast.Name):
                self._texts[-1][child.targets[0].id] = child.value
            site = self._site(child)
            if site is not None:
                yield site
            yield from self.sites_in(child)

    def _site(self, node: ast.AST) -> RaiseSite | None:
        if isinstance(node, ast.Raise) and node.exc is not None:
            return self._raised(node, node.exc)
        if isinstance(node, ast.Assert) and node.msg is not None:
            return self._made(node.lineno, "assert", "AssertionError", node.msg)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            name = ast.unparse(node.func) if len(node.args) < 20 else ""
            if name in EXITS:
                return self._made(node.lineno, "exit", EXITS[name], node.args[0])
            if node.func.attr in LOGGED and "log" in name.rpartition(".")[0].lower():
                return self._made(node.lineno, "log", "", node.args[0], percent=node.args[1:])
        return None

    def _raised(self, node: ast.Raise, raised: ast.expr) -> RaiseSite | None:
        if not isinstance(raised, ast.Call):
            return self._made(node.lineno, "raise", _class_name(raised), None) if _class_name(raised) else None
        message = next((argument for argument in raised.args if self._pieces(argument) is not None), None)
        named = [key.value for key in raised.keywords if key.arg in ("message", "msg", "detail")]
        return self._made(node.lineno, "raise", _class_name(raised.func), message or next(iter(named), None))

    def _made(
        self, line: int, kind: Kind, name: str, message: ast.expr | None, percent: list[ast.expr] | None = None
    ) -> RaiseSite:
        pieces = (self._pieces(message) if message is not None else None) or []
        if percent and isinstance(message, ast.Constant):
            pieces = self._split(str(message.value), PERCENT, percent)
        parts, gaps = _joined(pieces)
        return RaiseSite(self._module, ".".join(self._scope), line, kind, name, parts, gaps, self._when())

    def _when(self) -> tuple[str, ...]:
        """The names that the conditions around this place compare, the innermost first."""
        nodes = (node for test in reversed(self._tests) for node in ast.walk(test))
        names = (self._name(node) for node in nodes if isinstance(node, (ast.Attribute, ast.Name)))
        return tuple(dict.fromkeys(name for name in names if len(name) > 2 and name not in NO_VALUES))[:MAX_NAMES]

    def _name(self, node: ast.expr) -> str:
        """The last of `self.model_config.max_model_len`; of a local variable that only holds this, the same."""
        if isinstance(node, ast.Attribute):
            return node.attr
        if not isinstance(node, ast.Name):
            return ""
        held = self._texts[-1].get(node.id)
        return held.attr if isinstance(held, ast.Attribute) else node.id

    def _value(self, node: ast.expr) -> Pieces:
        """A gap, with the name of what is printed there."""
        return [None, self._name(node)]

    def _split(self, text: str, pattern: re.Pattern[str], values: list[ast.expr]) -> Pieces:
        pieces: Pieces = []
        at = 0
        for number, found in enumerate(pattern.finditer(text)):
            pieces.append(text[at : found.start()])
            given = self._value(values[number]) if number < len(values) else [None, ""]
            pieces += [None, found["name"]] if (found["name"] or "0").isidentifier() else given
            at = found.end()
        return [piece.replace("%%", "%") if piece else piece for piece in [*pieces, text[at:]]]

    def _pieces(self, node: ast.expr, depth: int = 0) -> Pieces | None:
        """None of what is no text, as far as the source shows."""
        if depth > 8:
            return None
        if isinstance(node, ast.Constant):
            return [node.value] if isinstance(node.value, str) else None
        if isinstance(node, ast.JoinedStr):
            return [piece for value in node.values for piece in self._of_joined(value, depth)]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self._pieces(node.left, depth + 1), self._pieces(node.right, depth + 1)
            if left is None and right is None:
                return None
            return [*(left or self._value(node.left)), *(right or self._value(node.right))]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant):
            values = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
            return self._split(str(node.left.value), PERCENT, values)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "format" and isinstance(node.func.value, ast.Constant):
                return self._split(str(node.func.value.value), BRACES, node.args)
            if node.func.attr in ADDED_TEXT and not node.args:
                return self._pieces(node.func.value, depth + 1)
        if isinstance(node, ast.IfExp):
            return self._pieces(node.body, depth + 1)
        if isinstance(node, ast.Name) and (assigned := self._texts[-1].get(node.id)) is not None:
            return self._pieces(assigned, depth + 1)
        return None

    def _of_joined(self, value: ast.expr, depth: int) -> Pieces:
        if isinstance(value, ast.FormattedValue):
            within = self._pieces(value.value, depth + 1) if isinstance(value.value, ast.Constant) else None
            return within or self._value(value.value)
        return self._pieces(value, depth + 1) or []


def _class_name(node: ast.expr) -> str:
    """Of a class, not of a variable that holds an exception, nor of a function that makes one."""
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name if name.lstrip("_")[:1].isupper() else ""


def _joined(pieces: Pieces) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Parts and gaps, one part more than gaps; neither longer than the index keeps."""
    parts, gaps = [""], []
    remaining = iter(pieces)
    for piece in remaining:
        if piece is None:
            gaps.append(next(remaining) or "")
            parts.append("")
        else:
            parts[-1] += piece
    if len(parts) > MAX_PARTS:
        parts, gaps = [*parts[: MAX_PARTS - 1], ""], gaps[: MAX_PARTS - 1]
    return tuple(SPACE.sub(" ", part)[:MAX_PART] for part in parts), tuple(gaps)
