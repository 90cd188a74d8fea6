"""Which backend each op gets on this machine, and why not the others. Imports no torch, so it can be used anywhere.

A backend declares its requirements as data; a `Fault` is a known defect, with its source, that rules a backend out
where its conditions hold. An explicit choice that cannot work is refused with the reason; `auto` takes the first
backend that can, and every verdict is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kernels.backend import Backend, CastNeeds, Condition, Fault, Objection
from kernels.context import CastSummary, Context

__all__ = [
    "AUTO", "Backend", "BackendRefusedError", "CastSummary", "Choice", "Condition", "Context", "Explanation", "Fault",
    "Objection", "Op", "Place", "PlaceChoice", "Verdict", "choose", "chosen_names", "explain", "heaviest_names",
    "names_by_place", "verdicts",
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
    """No backend can run an op here, or the requested one cannot. `verdicts` says why for each; `place` is where the
    model calls the op, if it is refused there."""

    def __init__(self, op: Op, requested: str, message: str, verdicts: tuple[Verdict, ...], place: str = "") -> None:
        super().__init__(message)
        self.op, self.requested, self.verdicts, self.place = op, requested, verdicts, place


def verdicts(op: Op, context: Context) -> tuple[Verdict, ...]:
    """One for each backend of the context's engine, in order of preference."""
    return tuple(Verdict(backend.name, tuple(backend.objections(context))) for backend in op.in_order(context))


def choose(op: Op, context: Context, requested: str = AUTO, place: str = "") -> Choice:
    """The backend of `op` in `context`; `place` is where that is, for people.

    Raises:
        BackendRefusedError: `requested` is unknown or cannot run here, or with `auto` no backend can.
    """
    judged, named = verdicts(op, context), place or op.name
    backends = dict(zip((verdict.backend for verdict in judged), op.in_order(context), strict=True))
    usable = [verdict.backend for verdict in judged if verdict.usable]
    if requested in usable:
        return Choice(op.name, backends[requested], requested, judged)
    if requested == AUTO and usable:
        return Choice(op.name, backends[usable[0]], requested, judged)
    if requested == AUTO:
        reasons = "; ".join(f"{verdict.backend} {verdict.reason}" for verdict in judged)
        message = f"no backend of {named} can run on {context.place}: {reasons}"
    elif requested in backends:
        verdict = next(verdict for verdict in judged if verdict.backend == requested)
        message = f"the {requested} backend of {named} cannot run here: it {verdict.reason}"
    else:
        known = ", ".join([AUTO, *backends])
        message = f"the {context.engine} engine has no backend {requested!r} of {op.name} (known: {known})"
    raise BackendRefusedError(op, requested, message, judged, place)


class Place(NamedTuple):
    """Where a model calls an op: `key` as `kernels.site_key` makes it, and what the choice depends on there."""

    op: str
    key: str
    context: Context


@dataclass(frozen=True)
class PlaceChoice:
    """The outcome for one place of an op, as `Explanation`."""

    key: str
    requested: str
    verdicts: tuple[Verdict, ...]
    chosen: Backend | None
    needs: CastNeeds
    refusal: BackendRefusedError | None = None


@dataclass(frozen=True)
class Explanation:
    """The outcome for one op: the chosen backend and what it needs from a cast, or why there is none. Where the model's
    places of the op are known, each has its own outcome; `chosen` is then what most of them get (of equally many, the
    first in order), and the verdicts are those of the first of these. One that is refused refuses the op. `needs` are
    of all places."""

    op: Op
    requested: str
    verdicts: tuple[Verdict, ...]
    chosen: Backend | None
    needs: CastNeeds
    refusal: BackendRefusedError | None = None
    places: tuple[PlaceChoice, ...] = ()

    @property
    def used(self) -> tuple[Backend, ...]:
        """Every backend that serves a place, the most frequent first."""
        if self.chosen is None:
            return ()
        found = {self.chosen.name: self.chosen}
        found |= {place.chosen.name: place.chosen for place in self.places if place.chosen}
        return tuple(found.values())


def explain(
    ops: Iterable[Op],
    context: Context,
    backends: Mapping[str, str] | None = None,
    places: Sequence[Place] = (),
    by_place: Mapping[str, str] | None = None,
) -> tuple[Explanation, ...]:
    """One for each op that the model needs; `backends` is the profile's mapping of settings to names, and `by_place`
    that of places, which goes first. Nothing is raised: an op without a usable backend has a `refusal` instead."""
    wanted, wanted_at = backends or {}, by_place or {}
    found = []
    for op in ops:
        if not op.concerns(context):
            continue
        requested = wanted.get(op.setting or "", AUTO)
        own = [place for place in places if place.op == op.name]
        if own:
            choices = tuple(_at(op, place.key, place.context, wanted_at.get(place.key, requested)) for place in own)
            found.append(_over(op, requested, choices))
        else:
            alone = _at(op, "", context, requested)
            found.append(Explanation(op, requested, alone.verdicts, alone.chosen, alone.needs, alone.refusal))
    return tuple(found)


def _at(op: Op, key: str, context: Context, requested: str) -> PlaceChoice:
    try:
        choice = choose(op, context, requested, key)
    except BackendRefusedError as error:
        return PlaceChoice(key, requested, error.verdicts, None, CastNeeds((), ()), error)
    return PlaceChoice(key, requested, choice.verdicts, choice.backend, choice.backend.needs_of_a_cast(context))


def _over(op: Op, requested: str, places: tuple[PlaceChoice, ...]) -> Explanation:
    """What the op's places come to together."""
    refused = next((place for place in places if place.refusal), None)
    counted = Counter(place.chosen.name for place in places if place.chosen)
    most = max((verdict.backend for verdict in places[0].verdicts), key=lambda name: counted[name])
    shown = refused or next(place for place in places if place.chosen and place.chosen.name == most)
    needs = CastNeeds(
        tuple(dict.fromkeys(name for place in places for name in place.needs.variants)),
        tuple(dict.fromkeys(name for place in places for name in place.needs.modules)),
    )
    refusal = refused.refusal if refused else None
    return Explanation(op, requested, shown.verdicts, None if refused else shown.chosen, needs, refusal, places)


def chosen_names(explanations: Iterable[Explanation]) -> dict[str, str]:
    """Op -> backend, for every op that has one: what a core binds where a place has no other."""
    return {found.op.name: found.chosen.name for found in explanations if found.chosen}


def names_by_place(explanations: Iterable[Explanation]) -> dict[str, str]:
    """Place -> backend, of all places that have one: what a core binds there."""
    return {place.key: place.chosen.name for found in explanations for place in found.places if place.chosen}


def heaviest_names(explanations: Iterable[Explanation]) -> dict[str, str]:
    """Op -> backend, for what memory is planned for and what graphs may hold: of several, the one that keeps the most
    beside its result (a library's own layout of weights, then torch)."""
    found = {}
    for explanation in explanations:
        if explanation.used:
            found[explanation.op.name] = max(
                explanation.used, key=lambda each: (bool(each.prepare), each.name == "torch")
            ).name
    return found
