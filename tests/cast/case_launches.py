"""`python -m tests.cast.case_launches ARCHITECTURE ...`: what the cases of every op launch, against what it declares.

Nothing is compiled and nothing runs: a launch ends where Triton would begin.
"""

from __future__ import annotations

import json
import sys

import torch
from triton.runtime.jit import JITFunction

from kernels import launch
from kernels.cast import plan
from kernels.cast.architectures import architecture_named
from kernels.named import load


def main() -> None:
    JITFunction.run = lambda *_, **__: None
    torch.empty, torch.empty_like = torch.zeros, torch.zeros_like  # type: ignore[assignment]  # what a kernel would write stays 0
    print(json.dumps({name: _launches(architecture_named(name).number) for name in sys.argv[1:]}))


def _launches(arch: int) -> dict[str, dict[str, list[str]]]:
    declared: dict[str, set[str]] = {}
    launched: dict[str, set[str]] = {}
    for variant in plan.triton_variants(arch):
        declared.setdefault(variant.op, set()).add(variant.name)
    heard: set[str] = set()
    with launch.launching_for(arch), launch.listening(lambda variant: heard.add(variant.name)):
        for op, backend in plan.triton_backends(arch):
            function = load(backend.function)
            heard.clear()
            for case in load(f"kernels.{op.name}.cases:cases")(arch):
                case.run(function, torch.device("cpu"))
            launched[op.name] = set(heard)
    everything = set().union(*declared.values())  # an op may launch a kernel that another declares
    return {
        op: {"missing": sorted(names - launched[op]), "undeclared": sorted(launched[op] - everything)}
        for op, names in declared.items()
    }


if __name__ == "__main__":
    main()
