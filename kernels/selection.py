"""Which backend an op gets here, and why not the others. Imports no torch, so that it can be asked anywhere.

A backend declares what it needs as data; a `Fault` is a known defect, with its source, that rules a backend out where
its conditions hold. An explicit choice that cannot work is refused with the reason; `auto` takes the first backend
that can, and every verdict is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

AUTO = "auto"


@dataclass(frozen=True)
class Context:
    """What a choice depends on: the device, the model's shapes and the way it is run.

    `capability` is None on the CPU. `libraries` maps the name of each library found to its version. `workers` counts
    the processes that run one model together.
    """

    device: str  # "cpu" or "cuda"
    capability: tuple[int, int] | None = None
    dtype: str = "float32"
    head_dim: int = 64
    num_heads: int = 1
    num_kv_heads: int = 1
    cuda_graphs: bool = False
    workers: int = 1
    libraries: Mapping[str, str] = field(default_factory=dict)
    engine: str = "native"  # or "vllm"
    kv_cache_dtype: str = ""  # "" for that of dtype; "float8_e4m3fn" for a cache in 8 bits
    hidden_size: int = 0
    intermediate_size: int = 0
    vocab_size: int = 0
    rotary_dim: int = 0
    rotary_interleaved: bool = False
    qk_norm: str = ""  # "" none, "head" over each head, "all" over all heads of a token together
    sliding_window: bool = False
    attention_sinks: bool = False
    soft_cap: bool = False
    activation: str = "silu"  # or "gelu", "gelu_tanh"
    fp8_blocks: tuple[int, int] | None = None  # rows and columns that share a weight scale, in a block-scaled FP8 model
    num_experts: int = 0  # 0: no mixture of experts
    experts_per_token: int = 0
    moe_intermediate_size: int = 0
    expert_scoring: str = "softmax"  # or "sigmoid"
    num_expert_groups: int = 0  # 0 or 1: experts are chosen from all of them at once

    @property
    def place(self) -> str:
        return "the CPU" if self.capability is None else "sm_{}{}".format(*self.capability)


@dataclass(frozen=True)
class Fault:
    """A known defect of a backend: it must not be chosen where `applies` holds. `source` is where it was reported."""

    reason: str
    source: str
    applies: Callable[[Context], bool]


@dataclass(frozen=True)
class Backend:
    """One implementation of an op. `function` is `module:name` and is imported only once it is chosen.

    Empty tuples mean "any". Capabilities are (major, minor), both ends included.
    """

    name: str
    function: str
    devices: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    head_dims: tuple[int, ...] = ()
    min_capability: tuple[int, int] | None = None
    max_capability: tuple[int, int] | None = None
    libraries: tuple[str, ...] = ()
    variants: str = ""  # `module:function` that declares its Triton kernels, where it has some
    faults: tuple[Fault, ...] = ()

    def objection(self, context: Context) -> tuple[str, str | None] | None:
        """Why this backend cannot run in `context`, as (reason, source); None when it can."""
        if self.devices and context.device not in self.devices:
            return f"runs on {' or '.join(self.devices)}, and this is {context.place}", None
        if context.capability is not None:
            if self.min_capability and context.capability < self.min_capability:
                return "needs sm_{}{} or newer, and this is {}".format(*self.min_capability, context.place), None
            if self.max_capability and context.capability > self.max_capability:
                return "covers GPUs up to sm_{}{}, and this is {}".format(*self.max_capability, context.place), None
        if self.dtypes and context.dtype not in self.dtypes:
            return f"has no {context.dtype} (has {', '.join(self.dtypes)})", None
        if self.head_dims and context.head_dim not in self.head_dims:
            sizes = ", ".join(map(str, self.head_dims))
            return f"has no head size {context.head_dim} (has {sizes})", None
        for library in self.libraries:
            if library not in context.libraries:
                return f"needs the library {library}, which is not installed", None
        for fault in self.faults:
            if fault.applies(context):
                return fault.reason, fault.source
        return None


@dataclass(frozen=True)
class Op:
    """An operation and its backends in order of preference. `setting` is the profile's key under `backends` that may
    force one of them; None where a profile has no say. `needed` tells whether a model calls it at all."""

    name: str
    backends: tuple[Backend, ...]
    setting: str | None = None
    needed: Callable[[Context], bool] = lambda _: True


@dataclass(frozen=True)
class Verdict:
    """What was decided about one backend. `reason` is empty for a backend that can run."""

    backend: str
    usable: bool
    reason: str = ""
    source: str | None = None


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
    found = []
    for backend in op.backends:
        objection = backend.objection(context)
        found.append(Verdict(backend.name, True) if objection is None else Verdict(backend.name, False, *objection))
    return tuple(found)


def choose(op: Op, context: Context, requested: str = AUTO) -> Choice:
    """The backend of `op` in `context`.

    Raises:
        BackendRefusedError: `requested` is unknown or cannot run here, or with `auto` no backend can.
    """
    judged = verdicts(op, context)
    by_name = dict(zip((backend.name for backend in op.backends), zip(op.backends, judged, strict=True), strict=True))
    if requested == AUTO:
        for backend, verdict in by_name.values():
            if verdict.usable:
                return Choice(op.name, backend, requested, judged)
        reasons = "; ".join(f"{verdict.backend} {verdict.reason}" for verdict in judged)
        raise BackendRefusedError(
            op, requested, f"no backend of {op.name} can run on {context.place}: {reasons}", judged
        )
    if requested not in by_name:
        known = ", ".join([AUTO, *by_name])
        raise BackendRefusedError(op, requested, f"{op.name} has no backend {requested!r} (known: {known})", judged)
    backend, verdict = by_name[requested]
    if not verdict.usable:
        message = f"the {requested} backend of {op.name} cannot run here: {verdict.reason}"
        raise BackendRefusedError(op, requested, message, judged)
    return Choice(op.name, backend, requested, judged)


def choose_all(ops: Iterable[Op], context: Context, backends: Mapping[str, str] | None = None) -> dict[str, Choice]:
    """A choice for each op that the model needs, by its name; `backends` is the profile's mapping of settings to names.

    Raises:
        BackendRefusedError: as `choose`, for the first op that cannot be served.
    """
    wanted = backends or {}
    return {op.name: choose(op, context, wanted.get(op.setting or "", AUTO)) for op in ops if op.needed(context)}
