"""A family is described once: in its file of checkpoint/families, by its row there, and in a file of models only where
its forward pass is its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.checkpoint import families
from appliance.checkpoint.families import FILES, family_of

ROOT = Path(__file__).parents[2]
DESCRIPTIONS = ROOT / "appliance" / "checkpoint" / "families"
# Formats of prompts, tool calls and reasoning are chosen by family, and some have the name of one.
ENCODERS = ROOT / "appliance" / "checkpoint" / "encoders"
PARSERS = ROOT / "appliance" / "serving" / "parsers"
PARSER_NAMES = ROOT / "appliance" / "profile" / "parser_names.py"
MODELS = ROOT / "appliance" / "models"
SHARED = {"__init__", "base", "decoder", "indexer", "latent_attention", "windows"}


def names() -> set[str]:
    """Architectures, and what `model_type` calls them."""
    return set(FILES) | {family_of(architecture).model_type for architecture in FILES}


def own_files() -> set[Path]:
    """Where a family may be named."""
    described = {DESCRIPTIONS / f"{name}.py" for name in FILES.values()}
    parsers = {PARSER_NAMES, *PARSERS.glob("*.py"), *ENCODERS.glob("*.py")}
    return described | {MODELS / f"{name}.py" for name in FILES.values()} | {Path(families.__file__)} | parsers


def texts(tree: ast.AST) -> Iterator[str]:
    """Strings that a program uses; docstrings are for people."""
    told = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            yield node.value


def named_in(source: str) -> set[str]:
    tree, known = ast.parse(source), names()
    called = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    return {name for text in texts(tree) for name in known if name == text or (name in FILES and name in text)} | (
        called & known
    )


@pytest.mark.parametrize("room", ["appliance", "kernels", "console"])
def test_no_family_is_named_outside_its_own_files(room):
    """What differs between families is in their descriptions; who needs it reads it there."""
    allowed = own_files()
    found = {
        str(path.relative_to(ROOT)): named
        for path in (ROOT / room).rglob("*.py")
        if path not in allowed and (named := named_in(path.read_text()))
    }
    assert found == {}


def test_the_search_finds_a_name():
    assert named_in('if config.model_type == "qwen2":\n    pass') == {"qwen2"}
    assert named_in('"""Of qwen2."""\nrope_type = "llama3"') == set()
    assert named_in('remedy = "such as LlamaForCausalLM"') == {"LlamaForCausalLM"}


def test_every_description_has_its_row_and_every_forward_pass_its_description():
    described = {path.stem for path in DESCRIPTIONS.glob("*.py")} - SHARED
    assert described == set(FILES.values())
    forwards = {family_of(architecture).forward.partition(":")[0] for architecture in FILES}
    own = {path.stem for path in MODELS.glob("*.py")} - {
        "__init__",
        "base",
        "batch",
        "collectives",
        "rank_progress",
        "registry",
    }
    assert own == {module.rpartition(".")[2] for module in forwards if module.count(".") == 2}
