"""Imports what is named as data: backends, kernels and declarations are `module:name`, imported when needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def load(name: str) -> Any:
    """The object named by `module:name`."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
