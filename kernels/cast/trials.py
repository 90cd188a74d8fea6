"""Launches every variant of a cast on this machine's GPU by the cases of its op, and compares with the reference."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernels import launch
from kernels.backend import Backend
from kernels.cases import Case, error
from kernels.cast import plan
from kernels.cast.architectures import ARCHITECTURES
from kernels.cast.manifest import Manifest
from kernels.cast.words import OpProof
from kernels.named import load
from kernels.seal import NotCast
from kernels.selection import Op

# On the CPU the reference is what the tests have checked.
_REFERENCE = torch.device("cpu")


def open_device() -> str:
    """Returns its name."""
    torch.zeros(1, device="cuda")
    return torch.cuda.get_device_name()


def launched(manifest: Manifest) -> Iterator[OpProof]:
    """For each op of the cast: how many of its variants were launched, and how far the results are from the
    reference."""
    # Fills new memory with NaN, so that elements a kernel leaves unwritten show.
    torch.use_deterministic_algorithms(True, warn_only=True)
    architecture = ARCHITECTURES[manifest.architecture]
    held: dict[str, set[str]] = {}
    for variant in manifest.variants:
        held.setdefault(variant.op, set()).add(variant.name)
    for op, backend in plan.triton_backends(architecture.number):
        if op.name in held:
            yield _Trial(op, backend, held[op.name], limited=bool(manifest.models)).run(architecture.number)


class _Trial:
    """Of one backend of one op. `limited`: the cast holds only some of the op's variants, and cases that need others
    are skipped."""

    def __init__(self, op: Op, backend: Backend, held: set[str], *, limited: bool) -> None:
        self._op = op
        self._function = load(backend.function)
        self._reference = load(next(other.function for other in op.backends if other.name == "torch"))
        self._held = held
        self._limited = limited
        self._launched: set[str] = set()
        self._problems: list[str] = []
        self._error, self._tolerance = 0.0, 1.0

    def run(self, arch: int) -> OpProof:
        cases = load(f"kernels.{self._op.name}.cases:cases")
        with launch.listening(lambda variant: self._launched.add(variant.name)):
            for case in cases(arch):
                self._try(case)
        missing = sorted(self._held - self._launched)
        self._problems += [f"no case launched {name}" for name in missing]
        return OpProof(
            op=self._op.name,
            variants=len(self._held),
            proven=len(self._held) - len(missing),
            error=self._error,
            tolerance=self._tolerance,
            problems=tuple(self._problems),
        )

    def _try(self, case: Case) -> None:
        try:
            results = case.run(self._function, torch.device("cuda"))
            errors = [
                error(result, expected)
                for result, expected in zip(results, case.run(self._reference, _REFERENCE), strict=True)
            ]
        except NotCast as missing:
            # A limited cast names its profiles, not the kernels they need, so cases of other models are tried too.
            # `run` reports variants that no case launched.
            if not self._limited:
                self._problems.append(f"{case.name}: {missing}")
            return
        except Exception as failure:  # noqa: BLE001 - any error of a kernel is a result
            self._problems.append(f"{case.name}: {type(failure).__name__}: {failure}")
            return
        worst = max(errors, default=0.0)
        if worst > case.tolerance:
            self._problems.append(f"{case.name}: error {worst:.1e}, tolerance {case.tolerance:.0e}")
        if worst * self._tolerance >= self._error * case.tolerance:  # closer to its tolerance than the worst so far
            self._error, self._tolerance = worst, case.tolerance
