"""Which backend each op gets on this machine, and why not the others. Imports no torch, so it can be used anywhere.

A backend declares its requirements as data; a `Fault` is a known defect, with its source, that rules a backend out
where its conditions hold. An explicit choice that cannot work is refused with the reason; `auto` takes the first
backend that can, and every verdict is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kernels.backend import Backend, CastNeeds, Condition, Fault, Objection
from kernels.context import CastSummary, Context

__all__ = [
    "AUTO", "Backend", "BackendRefusedError", "CastSummary", "Choice", "Condition", "Context", "Explanation", "Fault",
    "Objection", "Op", "Verdict", "choose", "chosen_names", "explain", "verdicts",
]  # fmt: skip

AUTO = "auto"


@dataclass(frozen=True)
class Op:
    """An operation and its backends in order of preference. `setting` is the profile's key under `backends` that can
    force one of them, or None. `needed` says whether a model calls the op at all; `absent` names what a model that
    does not call it lacks, such as "experts"."""

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
        """Whether there is anything to choose for this model with this engine."""
        return not context.left_to_engine and bool(self.of(context.engine)) and self.needed(context)


@dataclass(frozen=True)
class Verdict:
    """The decision about one backend: it can run unless there is an objection. `reason`, `source` and `remedy` are
    those of the first."""

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
    """The backend an op gets, and the verdict on each candidate."""

    op: str
    backend: Backend
    requested: str
    verdicts: tuple[Verdict, ...]


class BackendRefusedError(ValueError):
    """No backend can run an op here, or the requested one cannot. `verdicts` says why for each."""

    def __init__(self, op: Op, requested: str, message: str, verdicts: tuple[Verdict, ...]) -> None:
        super().__init__(message)
        self.op, self.requested, self.verdicts = op, requested, verdicts


def verdicts(op: Op, context: Context) -> tuple[Verdict, ...]:
    """One for each backend of the context's engine, in order of preference."""
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


@dataclass(frozen=True)
class Explanation:
    """The outcome for one op: the chosen backend and what it needs from a cast, or why there is none."""

    op: Op
    requested: str
    verdicts: tuple[Verdict, ...]
    chosen: Backend | None
    needs: CastNeeds
    refusal: BackendRefusedError | None = None


def explain(ops: Iterable[Op], context: Context, backends: Mapping[str, str] | None = None) -> tuple[Explanation, ...]:
    """One for each op that the model needs; `backends` is the profile's mapping of settings to names. Nothing is
    raised: an op without a usable backend has a `refusal` instead."""
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
    """Op -> backend, for every op that has one: what a core binds, and what its memory is planned for."""
    return {found.op.name: found.chosen.name for found in explanations if found.chosen}
