"""What differs between the engines is said once, in `appliance/engines.py`; few places compare an engine's name."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from appliance.engines import ENGINES, NAMES, NATIVE, VLLM, Engine, engine_named

ROOT = Path(__file__).parents[2]
TRAITS = [field.name for field in msgspec.structs.fields(Engine) if field.type is bool]
# Where an engine is dispatched, rather than asked for a trait; how often, and why.
DISPATCHED = {
    "appliance/explain/report.py": 2,  # what is explained of vLLM
    "appliance/profile/schema.py": 1,  # the `vllm` block is vLLM's
    "appliance/supervisor/supervisor.py": 1,  # its launch
    "kernels/cast/flashinfer.py": 1,  # a cast is the native engine's
    "kernels/context.py": 1,  # vLLM's build for CPUs
}


def names(node: ast.AST) -> bool:
    """An engine's name, or one of its constants in `appliance/engines.py`."""
    if isinstance(node, ast.Constant):
        return node.value in NAMES
    return isinstance(node, ast.Name) and node.id in ("NATIVE", "VLLM")


def comparisons(path: Path) -> int:
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Compare)]
    same = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot)
    return sum(isinstance(node.ops[0], same) and any(map(names, (node.left, *node.comparators))) for node in nodes)


def test_an_engines_name_is_compared_only_where_it_is_dispatched() -> None:
    """Elsewhere a trait says what differs, so that a third engine would be a row and its own room."""
    files = [path for room in ("appliance", "console", "kernels") for path in (ROOT / room).rglob("*.py")]
    found = Counter({str(path.relative_to(ROOT)): comparisons(path) for path in files})
    assert +found == DISPATCHED


def test_the_table_is_by_name_and_whatever_else_is_native() -> None:
    assert {name: engine.name for name, engine in ENGINES.items()} == {name: name for name in NAMES}
    for name in (None, "", "sglang", 7, ["vllm"]):
        assert engine_named(name) is NATIVE
    assert engine_named("vllm") is VLLM


@pytest.mark.parametrize("trait", TRAITS)
def test_a_trait_tells_engines_apart_and_is_asked_for(trait: str) -> None:
    """One that does neither is no trait."""
    assert len({getattr(engine, trait) for engine in ENGINES.values()}) > 1
    asking = [path for path in (ROOT / "appliance").rglob("*.py") if f".{trait}" in path.read_text()]
    assert asking
