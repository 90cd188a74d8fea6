"""Read by every Python that has this folder on PYTHONPATH: a phase after the engine's start counts as hung within
SHORT_DEADLINE_S, which a test can wait for."""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

SLOW = "appliance.vllm.deadlines"
UNHURRIED = "engine start"  # on a busy machine vLLM imports for a minute


class Shortened(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the module that says how long the phases may take, and shortens them once it is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != SLOW:
            return None
        sys.meta_path.remove(self)
        self._found = importlib.util.find_spec(fullname)
        return importlib.util.spec_from_loader(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        assert self._found is not None
        assert self._found.loader is not None
        self._found.loader.exec_module(module)
        floors: dict[str, float] = vars(module)["FLOORS_S"]
        floors.update({phase: float(os.environ["SHORT_DEADLINE_S"]) for phase in floors if phase != UNHURRIED})


if "SHORT_DEADLINE_S" in os.environ:
    sys.meta_path.insert(0, Shortened())
