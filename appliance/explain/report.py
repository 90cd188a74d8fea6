"""Everything about the choices for one profile on one device: each op with its backends, as rows that a table, a page
and a program show alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from appliance.checkpoint.config import read_config
from appliance.checkpoint.drafting import with_head
from appliance.checkpoint.folder import locate
from appliance.checkpoint.memory import MemoryPlan
from appliance.checkpoint.outline import Outline, read_outline
from appliance.checkpoint.sharding import sharded
from appliance.checkpoint.sites import Site, sites
from appliance.engines import engine_named
from appliance.hardware.device import Device, select_device
from appliance.hardware.engine_machine import Machine
from appliance.hardware.host import Host
from appliance.hardware.known import KnownGpu
from appliance.hardware.machine import Inventory
from appliance.home import Home
from appliance.plan.effective import resolve, uses_head, workers
from appliance.profile.schema import Profile
from appliance.vllm.backends import options_of
from kernels.backend import Objection
from kernels.cast.architectures import ARCHITECTURES
from kernels.catalogue import OPS
from kernels.context import Context
from kernels.selection import AUTO, Explanation, explain


@dataclass(frozen=True)
class OtherBackend:
    """A backend that an op does not get. `objections` is empty for one that could run, and `reason` says why it does
    not all the same."""

    name: str
    reason: str
    objections: tuple[Objection, ...] = ()

    @property
    def source(self) -> str | None:
        return self.objections[0].source if self.objections else None

    @property
    def remedy(self) -> str:
        return self.objections[0].remedy if self.objections else ""

    @property
    def could_run(self) -> bool:
        return not self.objections


@dataclass(frozen=True)
class SiteRow:
    """One place where the model calls an op, and what it gets there; `why` is set where that is not what the op's other
    places get. `backend` is None where none can run."""

    site: Site
    backend: str | None
    requested: str = AUTO
    why: str = ""


@dataclass(frozen=True)
class Row:
    """One op. `chosen` is None where the op is refused; `kernels` is how many compiled ones the chosen backend may
    launch, which is what a cast has to hold for it. `sites` are where the model calls the op, of the native engine.
    `arguments` and `environment` make vLLM use it."""

    op: str
    setting: str | None
    requested: str
    chosen: str | None
    others: tuple[OtherBackend, ...]
    kernels: int = 0
    sites: tuple[SiteRow, ...] = ()
    refusal: str = ""
    arguments: Mapping[str, str] | None = None
    environment: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Report:
    """`memory` is there for the native engine: that of each of `ranks`. `hypothetical`: the device is not this
    machine's. `num_layers` are those that `sites` count, with one that drafts."""

    profile: str
    architecture: str
    context: Context
    device: Device
    hypothetical: bool
    rows: tuple[Row, ...]
    memory: MemoryPlan | None = None
    ranks: int = 1
    num_layers: int = 0

    @property
    def refused(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.chosen is None)

    @property
    def repeated(self) -> dict[str, str]:
        """Backends that several ops pass over for the same reason and without a remedy, with that reason."""
        reasons: dict[str, Counter[str]] = {}
        for row in self.rows:
            for other in row.others:
                if not (other.could_run or other.source or other.remedy):
                    reasons.setdefault(other.name, Counter())[other.reason] += 1
        most = {name: found.most_common(1)[0] for name, found in reasons.items()}
        return {name: reason for name, (reason, rows) in most.items() if rows > 1}

    @property
    def kernels(self) -> int:
        return sum(row.kernels for row in self.rows)

    @property
    def can_be_cast(self) -> bool:
        """Whether kernels can be compiled beforehand for the device's architecture."""
        return any(architecture.number == self.context.arch for architecture in ARCHITECTURES.values())


def report(profile: Profile, home: Home, *, machine: Machine, gpu: KnownGpu | None = None) -> Report:
    """How `profile` would be served on `machine`; with `gpu`, had it that one instead, and no cast.

    Raises:
        CheckpointError: the model's folder or its config.json cannot be used.
        DeviceError: the profile names a device that is not there.
    """
    if gpu is not None:
        profile = structs.replace(profile, device="auto")
        machine = Machine(inventory=machine_with(gpu, machine.inventory.host), libraries=machine.libraries)
    folder = locate(profile.model.path, home)
    called: tuple[Site, ...] = ()
    num_layers = 0
    if engine_named(profile.engine).reads_more:
        device = select_device(profile.device, machine.for_next, machine.environ)
        outline = read_outline(folder)
        context = _outline_context(profile, outline, device, machine.libraries)
        explanations, architecture, memory = explain(OPS, context, profile.backends), outline.architecture, None
        ranks = 1
    else:
        config = read_config(folder)
        effective = resolve(profile, config=config, machine=machine)
        context, device, explanations = effective.context, effective.device, effective.selection
        architecture, memory, ranks = config.architecture, effective.memory, effective.ranks
        if uses_head(profile):
            config = with_head(config)
        num_layers = config.num_hidden_layers
        called = sites(
            sharded(config, ranks),
            dtype=context.dtype,
            cache_dtype=context.cache_dtype,
            keep_fp8=context.fp8_blocks is not None,
        )
    return Report(
        profile=profile.name,
        architecture=architecture,
        context=context,
        device=device,
        hypothetical=gpu is not None,
        rows=rows(explanations, called),
        memory=memory,
        ranks=ranks,
        num_layers=num_layers,
    )


def machine_with(gpu: KnownGpu, host: Host) -> Inventory:
    """This machine with one GPU, of that kind."""
    return Inventory(gpus=(gpu.as_gpu(),), driver_version=None, cuda_version=None, host=host, problem=None)


def _outline_context(profile: Profile, outline: Outline, device: Device, libraries: Mapping[str, str]) -> Context:
    return Context(
        device=device.kind,
        capability=device.gpu.compute_capability if device.gpu else None,
        dtype=outline.dtype if profile.dtype == AUTO else profile.dtype,
        kv_cache_dtype="float8_e4m3fn" if profile.kv_cache_dtype.startswith("fp8") else "",
        cuda_graphs=device.gpu is not None and not profile.enforce_eager,
        workers=workers(profile),
        libraries=libraries,
        engine=profile.engine,
        left_to_engine=device.kind in engine_named(profile.engine).one_backend_on,
        **outline.shape,
    )


def rows(explanations: Iterable[Explanation], called: Sequence[Site] = ()) -> tuple[Row, ...]:
    """`called` is where the model calls the ops, as far as that is known."""
    return tuple(_row(each, tuple(site for site in called if site.op == each.op.name)) for each in explanations)


def _row(explanation: Explanation, called: tuple[Site, ...]) -> Row:
    chosen = explanation.chosen
    told = chosen is not None and engine_named(chosen.engine).takes_options
    options = options_of(explanation.op.name, chosen.name) if chosen and told else None
    return Row(
        op=explanation.op.name,
        setting=explanation.op.setting,
        requested=explanation.requested,
        chosen=chosen.name if chosen else None,
        others=tuple(_others(explanation)),
        kernels=len(explanation.needs.variants) + len(explanation.needs.modules),
        sites=tuple(_site(explanation, site) for site in called),
        refusal=str(explanation.refusal or ""),
        arguments=options.arguments if options else None,
        environment=options.environment if options else None,
    )


def _site(explanation: Explanation, site: Site) -> SiteRow:
    usual = explanation.chosen.name if explanation.chosen else None
    place = next((place for place in explanation.places if place.key == site.key), None)
    if place is None:
        return SiteRow(site, usual)
    name = place.chosen.name if place.chosen else None
    if name == usual or name is None:
        return SiteRow(site, name, place.requested, str(place.refusal or ""))
    if place.requested == name:
        why = "the profile asks for it here"
    else:
        verdict = next(verdict for verdict in place.verdicts if verdict.backend == usual)
        why = f"{usual} {verdict.reason or 'is not preferred here'}"
    return SiteRow(site, name, place.requested, why)


def _others(explanation: Explanation) -> Iterable[OtherBackend]:
    chosen = explanation.chosen.name if explanation.chosen else None
    for verdict in explanation.verdicts:
        if verdict.backend == chosen:
            continue
        reason = verdict.reason
        if verdict.usable and explanation.requested == AUTO:
            reason = f"could run; {chosen} is preferred"
        elif verdict.usable:
            reason = f"could run; the profile asks for {explanation.requested}"
        yield OtherBackend(verdict.backend, reason, verdict.objections)
