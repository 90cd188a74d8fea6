"""The chosen functions under the names by which the models call them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from kernels.named import load
from kernels.selection import Choice


@dataclass(frozen=True, slots=True)
class Kernels:
    """One function an op. Each op's folder documents its function in `reference.py`; every backend has its
    signature. `prepare_linear` brings a weight that is filled into the layout that `linear` reads; it may be the weight
    itself, and is of no use but to `linear`."""

    embedding: Callable[..., Any]
    rms_norm: Callable[..., Any]
    rotary: Callable[..., Any]
    cache_write: Callable[..., Any]
    paged_attention: Callable[..., Any]
    linear: Callable[..., Any]
    fp8_linear: Callable[..., Any]
    gated_activation: Callable[..., Any]
    moe_routing: Callable[..., Any]
    fused_moe: Callable[..., Any]
    sampling: Callable[..., Any]
    prepare_linear: Callable[[Any], Any]


def bind(choices: Mapping[str, Choice]) -> Kernels:
    """Import the chosen backends, and nothing else. An op without a choice is one that the model does not need; to call
    it is an error of ours."""
    names = [field.name for field in fields(Kernels) if field.name != "prepare_linear"]
    functions = {name: load(choices[name].backend.function) if name in choices else _unneeded(name) for name in names}
    prepare = choices["linear"].backend.prepare if "linear" in choices else ""
    return Kernels(**functions, prepare_linear=load(prepare) if prepare else lambda weight: weight)


def _unneeded(name: str) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise AssertionError(f"{name} was called by a model of which selection was told that it does not need it")

    return call
