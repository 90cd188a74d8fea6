"""Which backend an op gets here, and why not the others. Imports no torch, so that it can be asked anywhere.

A backend declares what it needs as data; a `Fault` is a known defect, with its source, that rules a backend out where
its conditions hold. An explicit choice that cannot work is refused with the reason; `auto` takes the first backend
that can, and every verdict is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kernels.backend import Backend, CastNeeds, Condition, Fault, Objection
from kernels.context import CastSummary, Context

__all__ = [
    "AUTO", "Backend", "BackendRefusedError", "CastSummary", "Choice", "Condition", "Context", "Explanation", "Fault",
    "Objection", "Op", "Verdict", "choose", "choose_all", "chosen_names", "explain", "verdicts",
]  # fmt: skip

AUTO = "auto"


@dataclass(frozen=True)
class Op:
    """An operation and its backends in order of preference. `setting` is the profile's key under `backends` that may
    force one of them; None where a profile has no say. `needed` tells whether a model calls it at all, and `absent`
    what a model that does not is without."""

    name: str
    backends: tuple[Backend, ...]
    setting: str | None = None
    needed: Callable[[Context], bool] = lambda _: True
    absent: str = ""

    def of(self, engine: str) -> tuple[Backend, ...]:
        """The backends of one engine; none where that engine does not let us choose."""
        return tuple(backend for backend in self.backends if backend.engine == engine)

    def in_order(self, context: Context) -> tuple[Backend, ...]:
        """The backends of the context's engine, as they are preferred on its GPU."""
        return tuple(
            sorted(self.of(context.engine), key=lambda backend: context.capability not in backend.preferred_on)
        )

    def concerns(self, context: Context) -> bool:
        """Whether there is something to choose for this model with this engine."""
        return not context.left_to_engine and bool(self.of(context.engine)) and self.needed(context)


@dataclass(frozen=True)
class Verdict:
    """What was decided about one backend: it can run where there is no objection. The first objection decides."""

    backend: str
    objections: tuple[Objection, ...] = ()

    @property
    def usable(self) -> bool:
        return not self.objections

    @property
    def reason(self) -> str:
        return self.objections[0].reason if self.objections else ""

    @property
    def source(self) -> str | None:
        return self.objections[0].source if self.objections else None

    @property
    def remedy(self) -> str:
        return self.objections[0].remedy if self.objections else ""


@dataclass(frozen=True)
class Choice:
    """The backend an op gets, with the verdict on each of its backends."""

    op: str
    backend: Backend
    requested: str
    verdicts: tuple[Verdict, ...]


class BackendRefusedError(ValueError):
    """No backend can serve an op here, or not the one that was asked for. `verdicts` says why, one by one."""

    def __init__(self, op: Op, requested: str, message: str, verdicts: tuple[Verdict, ...]) -> None:
        super().__init__(message)
        self.op, self.requested, self.verdicts = op, requested, verdicts


def verdicts(op: Op, context: Context) -> tuple[Verdict, ...]:
    """One on each backend of the context's engine, in order of preference."""
    return tuple(Verdict(backend.name, tuple(backend.objections(context))) for backend in op.in_order(context))


def choose(op: Op, context: Context, requested: str = AUTO) -> Choice:
    """The backend of `op` in `context`.

    Raises:
        BackendRefusedError: `requested` is unknown or cannot run here, or with `auto` no backend can.
    """
    judged = verdicts(op, context)
    backends = dict(zip((verdict.backend for verdict in judged), op.in_order(context), strict=True))
    usable = [verdict.backend for verdict in judged if verdict.usable]
    if requested in usable:
        return Choice(op.name, backends[requested], requested, judged)
    if requested == AUTO and usable:
        return Choice(op.name, backends[usable[0]], requested, judged)
    if requested == AUTO:
        reasons = "; ".join(f"{verdict.backend} {verdict.reason}" for verdict in judged)
        message = f"no backend of {op.name} can run on {context.place}: {reasons}"
    elif requested in backends:
        verdict = next(verdict for verdict in judged if verdict.backend == requested)
        message = f"the {requested} backend of {op.name} cannot run here: it {verdict.reason}"
    else:
        known = ", ".join([AUTO, *backends])
        message = f"the {context.engine} engine has no backend {requested!r} of {op.name} (known: {known})"
    raise BackendRefusedError(op, requested, message, judged)


def choose_all(ops: Iterable[Op], context: Context, backends: Mapping[str, str] | None = None) -> dict[str, Choice]:
    """A choice for each op that the model needs, by its name; `backends` is the profile's mapping of settings to names.

    Raises:
        BackendRefusedError: as `choose`, for the first op that cannot be served.
    """
    wanted = backends or {}
    return {op.name: choose(op, context, wanted.get(op.setting or "", AUTO)) for op in ops if op.concerns(context)}


@dataclass(frozen=True)
class Explanation:
    """How it stands with one op: what was chosen and what that needs of a cast, or why nothing was."""

    op: Op
    requested: str
    verdicts: tuple[Verdict, ...]
    chosen: Backend | None
    needs: CastNeeds
    refusal: BackendRefusedError | None = None


def explain(ops: Iterable[Op], context: Context, backends: Mapping[str, str] | None = None) -> tuple[Explanation, ...]:
    """As `choose_all`, but nothing is raised: what cannot be served is told beside what can."""
    wanted = backends or {}
    found = []
    for op in ops:
        if not op.concerns(context):
            continue
        requested = wanted.get(op.setting or "", AUTO)
        try:
            choice = choose(op, context, requested)
        except BackendRefusedError as error:
            found.append(Explanation(op, requested, error.verdicts, None, CastNeeds((), ()), error))
        else:
            needs = choice.backend.needs_of_a_cast(context)
            found.append(Explanation(op, requested, choice.verdicts, choice.backend, needs))
    return tuple(found)


def chosen_names(explanations: Iterable[Explanation]) -> dict[str, str]:
    """Op -> backend, of every op that can be served: what a core binds, and what its memory is planned for."""
    return {found.op.name: found.chosen.name for found in explanations if found.chosen}
