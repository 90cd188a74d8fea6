"""What differs between the engines is said once, in `appliance/engines.py`; few places compare an engine's name."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from appliance.engines import ENGINES, NAMES, NATIVE, VLLM, Engine, engine_named

ROOT = Path(__file__).parents[2]
TRAITS = [field.name for field in msgspec.structs.fields(Engine) if field.type is bool]
# Where an engine is dispatched, rather than asked for a trait; how often, and why.
DISPATCHED = {
    "appliance/explain/explain_command.py": 1,  # a field of its JSON: vLLM's arguments for a backend
    "appliance/preflight/checks/libraries.py": 1,  # a package's name, by which its compiled library is found
    "appliance/preflight/offer.py": 1,  # the offer is to change to vLLM
    "appliance/profile/document.py": 1,  # the `vllm` block of a document
    "appliance/supervisor/supervisor.py": 1,  # its launch
    "console/launches/waiting.py": 1,  # the deadlines of a launch of which there is only a record
    "kernels/cast/flashinfer.py": 1,  # a cast is the native engine's
    "kernels/libraries.py": 1,  # a package's name
}
IN_TEMPLATES = {
    "console/models/templates/installed.html": 1,  # whether a model is supported: "native" is a status there
}
TEMPLATE_COMPARISON = re.compile(
    rf"""(?:[!=]=|\bin)\s*\(?["'](?:{"|".join(NAMES)})["']|["'](?:{"|".join(NAMES)})["']\s*[!=]="""
)


def names(node: ast.AST | None) -> bool:
    """An engine's name, or one of its constants in `appliance/engines.py`, or several of them."""
    if isinstance(node, ast.Constant):
        return node.value in NAMES
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(map(names, node.elts))
    if isinstance(node, ast.Attribute) and node.attr == "name":
        return names(node.value)
    return isinstance(node, ast.Name) and node.id in ("NATIVE", "VLLM")


def dispatches(node: ast.AST) -> bool:
    """Whether something is done for one engine by its name: a comparison, a key of a table, a `case`."""
    match node:
        case ast.Compare(ops=[ast.Eq() | ast.NotEq() | ast.Is() | ast.IsNot() | ast.In() | ast.NotIn(), *_]):
            return any(map(names, (node.left, *node.comparators)))
        case ast.Dict():
            return any(map(names, node.keys))
        case ast.MatchValue():
            return names(node.value)
    return False


def dispatching(source: str) -> int:
    return sum(map(dispatches, ast.walk(ast.parse(source))))


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('engine == "vllm"', 1), ("VLLM.name != engine", 1), ("engine is NATIVE", 1), ('engine in ("vllm", "x")', 1),
        ('{"vllm": 1, "native": 2}', 1), ("{VLLM.name: 1}", 1),
        ('match x:\n case "vllm": pass\n case "native": pass', 2),
        ('engine = "vllm"', 0), ("VLLM.own_python", 0), ('{"engine": "vllm"}', 0), ('table["engine"] == other', 0),
    ],
)  # fmt: skip
def test_every_way_to_dispatch_is_seen(source: str, count: int) -> None:
    assert dispatching(source) == count


def test_an_engines_name_is_compared_only_where_it_is_dispatched() -> None:
    """Elsewhere a trait says what differs, so that a third engine would be a row and its own room."""
    files = [path for room in ("appliance", "console", "kernels") for path in (ROOT / room).rglob("*.py")]
    found = Counter({str(path.relative_to(ROOT)): dispatching(path.read_text()) for path in files})
    assert +found == DISPATCHED


def test_templates_compare_no_engines_name() -> None:
    """They have its traits and its title."""
    assert TEMPLATE_COMPARISON.search("{% if x == 'vllm' %}")
    assert TEMPLATE_COMPARISON.search('x in ("native", y)')
    assert not TEMPLATE_COMPARISON.search('{"engine": "vllm"}')
    files = [path for kind in ("html", "js") for path in (ROOT / "console").rglob(f"*.{kind}")]
    found = Counter({str(path.relative_to(ROOT)): len(TEMPLATE_COMPARISON.findall(path.read_text())) for path in files})
    assert +found == IN_TEMPLATES


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
