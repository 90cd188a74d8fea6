"""A kernel may start while the one before it still runs, so each one waits before it touches what others write."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

import pytest

from kernels import dependent_launch
from kernels.cast import plan
from kernels.named import load

WAITS = {"wait_for_previous", "prefetch_and_wait"}
# Of other functions that a kernel calls: these are what its own lines could do before it waits.
TOUCHES = {"load", "store", "atomic_add", "atomic_max", "atomic_cas", "atomic_xchg", "make_tensor_descriptor"}
# What may be done before the wait, with what the step does not change.
AHEAD = {dependent_launch.laid_out, dependent_launch.prefetch}
KERNELS = sorted({variant.kernel for arch in (80, 90, 120) for variant in plan.triton_variants(arch)})


def called(statement: ast.stmt) -> list[str]:
    """The names of functions that it calls, without their modules."""
    calls = (node.func for node in ast.walk(statement) if isinstance(node, ast.Call))
    return [found.attr if isinstance(found, ast.Attribute) else found.id for found in calls
            if isinstance(found, ast.Attribute | ast.Name)]  # fmt: skip


def calls_of(function: Any) -> set[str]:
    (parsed,) = ast.parse(textwrap.dedent(inspect.getsource(getattr(function, "fn", function)))).body
    return set(called(parsed))


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_waits_before_it_touches_memory(name):
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(load(name).fn))).body
    assert isinstance(function, ast.FunctionDef)
    calls = [called(statement) for statement in function.body]
    waits = [index for index, names in enumerate(calls) if WAITS & set(names)]
    assert len(waits) == 1
    assert calls[waits[0]][0] in WAITS  # at the top, not in a branch that may not be taken
    assert isinstance(function.body[waits[0]], ast.Expr)
    for names in calls[: waits[0]]:
        assert not TOUCHES & set(names)
        for called_before in filter(None, (vars(inspect.getmodule(load(name).fn)).get(each) for each in names)):
            assert called_before in AHEAD or not TOUCHES & calls_of(called_before)
