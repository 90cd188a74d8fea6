"""Read by every Python that has this folder on PYTHONPATH: makes an engine fail inside, where files in the folder that
FAULT_HOOKS names ask for it. Only the benchmark of failures puts it there."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

HOOKS = Path(os.environ.get("FAULT_HOOKS", "/nonexistent"))


def raising(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step that needs more memory than there is, once it is asked to."""

    def spoilt(*arguments: Any, **named: Any) -> Any:
        if (HOOKS / "step-raises").exists():
            import torch

            torch.empty(1 << 50, dtype=torch.uint8)
        return step(*arguments, **named)

    return spoilt


def idling(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step that computes nothing, for as long as it is asked to: the core lives, beats, and answers."""

    def spoilt(*arguments: Any, **named: Any) -> Any:
        if (HOOKS / "generates-nothing").exists():
            time.sleep(0.01)
            return []
        return step(*arguments, **named)

    return spoilt


TARGETS: dict[str, tuple[tuple[str, str, Callable[..., Any]], ...]] = {
    "appliance.engine.runner": (("Runner", "compute", raising),),
    "appliance.engine.engine": (("Engine", "step", idling),),
    "vllm.v1.worker.gpu_model_runner": (("GPUModelRunner", "execute_model", raising),),
}
"""Module -> the methods of its classes that are wrapped, and by what."""


class Spoiler(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in TARGETS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_wrap(module: ModuleType) -> None:
            run(module)
            for owner, method, wrap in TARGETS[name]:
                kind = getattr(module, owner)
                setattr(kind, method, wrap(getattr(kind, method)))

        spec.loader.exec_module = run_and_wrap  # type: ignore[method-assign]
        return spec


if HOOKS.is_dir():
    sys.meta_path.insert(0, Spoiler())
