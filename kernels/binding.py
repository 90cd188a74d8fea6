"""The chosen functions under the names by which the models call them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernels.selection import Choice


@dataclass(frozen=True, slots=True)
class Kernels:
    """One function an op. Each op's folder documents its function in `reference.py`; every backend has its
    signature."""

    embedding: Callable[..., Any]
    rms_norm: Callable[..., Any]
    rotary: Callable[..., Any]
    silu_and_mul: Callable[..., Any]
    cache_write: Callable[..., Any]
    paged_attention: Callable[..., Any]
    linear: Callable[..., Any]
    sampling: Callable[..., Any]


def bind(choices: Mapping[str, Choice]) -> Kernels:
    """Import the chosen backends, and nothing else."""
    return Kernels(**{name: _load(choice.backend.function) for name, choice in choices.items()})


def _load(function: str) -> Callable[..., Any]:
    module, _, name = function.partition(":")
    loaded: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return loaded
