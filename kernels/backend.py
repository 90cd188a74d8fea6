"""What an implementation of an op declares about itself, as data, and the objections to it in a context."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kernels.cast.architectures import ARCHITECTURES
from kernels.context import Context
from kernels.cpu import library as cpu
from kernels.named import load

DEVICES = {"cuda": "NVIDIA GPUs", "cpu": "the CPU"}
"""What people call them."""

_LIBRARY = re.compile(r"(?P<name>[\w-]+)(>=(?P<least>[\d.]+))?")


class Objection(NamedTuple):
    """Why a backend cannot run: `reason` continues a sentence that begins with the backend's name ("needs sm_90 or
    newer, ..."); `source` documents it, and `remedy` says what would let it run."""

    reason: str
    source: str | None = None
    remedy: str = ""


@dataclass(frozen=True)
class Fault:
    """A known defect of a backend, which must not be chosen where `applies` holds. `source` is the report; `remedy`
    says what would let the backend run, if anything does."""

    name: str
    reason: str
    source: str
    applies: Callable[[Context], bool]
    remedy: str = ""


@dataclass(frozen=True)
class Condition:
    """A requirement on a model's shape: `field` of the context must meet all of the limits. `says` is the reason to
    give where the value alone does not explain it."""

    field: str
    multiple_of: int = 1
    at_least: int = 0
    at_most: int | None = None
    one_of: tuple[Any, ...] = ()
    says: str = ""

    def holds(self, context: Context) -> bool:
        value = getattr(context, self.field)
        if self.one_of:
            return value in self.one_of
        return (
            value % self.multiple_of == 0 and self.at_least <= value and (self.at_most is None or value <= self.at_most)
        )

    def reason(self, context: Context) -> str:
        if self.says:
            return self.says
        words = self.field.replace("num_", "number_of_").replace("_", " ")
        limits = [" or ".join(map(str, self.one_of))] if self.one_of else []
        limits += [f"a multiple of {self.multiple_of}"] if self.multiple_of > 1 else []
        limits += [f"at least {_number(self.at_least)}"] if self.at_least else []
        limits += [f"at most {_number(self.at_most)}"] if self.at_most is not None else []
        return f"needs the {words} to be {' and '.join(limits)}, but it is {_number(getattr(context, self.field))}"


@dataclass(frozen=True)
class Backend:
    """One implementation of an op. `function` is `module:name` and is imported only once it is chosen; one inside vLLM
    has none.

    Empty tuples mean "any". Capabilities are (major, minor), both ends included. `lacks` names flags of the context
    that the backend does not support. `cpu_features` gives sets of processor flags by dtype; one set must be complete.
    `libraries` are names with an optional minimum version ("flashinfer>=0.6.8"). `variants` and `modules` are
    `module:function`, called with architecture and context; they yield the Triton variants and FlashInfer modules the
    backend would launch. `prepare` is `module:function`; it converts a loaded weight into the layout that `function`
    reads. `source` documents which GPUs the backend is for. `preferred_on` are capabilities where it was measured to be
    faster than the backends listed before it (docs/performance.md), and goes first. `captured`: a CUDA graph can hold a
    decode by it. Where it cannot, the backend may be chosen, and then there are no graphs; a fault that applies to
    graphs has another backend chosen instead. `captures_prefills`: it also reads no length of a prompt on the host, and
    keeps nothing of padding where a sequence reads it, so that steps with prompts have graphs.
    """

    name: str
    function: str = ""
    engine: str = "native"  # or "vllm"
    devices: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    cpu_features: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    kv_cache_dtypes: tuple[str, ...] = ()
    head_dims: tuple[int, ...] = ()
    min_capability: tuple[int, int] | None = None
    max_capability: tuple[int, int] | None = None
    conditions: tuple[Condition, ...] = ()
    lacks: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    variants: str = ""
    modules: str = ""
    prepare: str = ""
    preferred_on: tuple[tuple[int, int], ...] = ()
    captured: bool = True
    captures_prefills: bool = True
    faults: tuple[Fault, ...] = ()
    source: str | None = None

    @property
    def is_compiled(self) -> bool:
        """Whether it launches kernels from a cast."""
        return bool(self.variants or self.modules)

    def objections(self, context: Context) -> Iterator[Objection]:
        """Everything that keeps this backend from running in `context`, hardest to change first."""
        found = False
        for reason in self._against_the_device(context):
            yield Objection(reason, self.source)
            return  # anything else it lacks does not matter then
        for reason in self._against_the_model(context):
            found = True
            yield Objection(reason)
        for fault in self.faults:
            if fault.applies(context):
                found = True
                yield Objection(fault.reason, fault.source, fault.remedy)
        if not found:  # a backend's variants are declared only for what it supports
            yield from (Objection(reason) for reason in self._against_the_cast(context))

    def _against_the_device(self, context: Context) -> Iterator[str]:
        if self.devices and context.device not in self.devices:
            named = " or ".join(DEVICES.get(device, device) for device in self.devices)
            yield f"runs only on {named}, not on {context.place}"
        elif context.capability is not None:
            if self.min_capability and context.capability < self.min_capability:
                yield "needs sm_{}{} or newer, but this is {}".format(*self.min_capability, context.place)
            if self.max_capability and context.capability > self.max_capability:
                yield "supports GPUs up to sm_{}{}, but this is {}".format(*self.max_capability, context.place)
            if self.is_compiled and not _known(context.arch):
                yield f"has kernels for {', '.join(ARCHITECTURES)}, but this is {context.place}"

    def _against_the_processor(self, context: Context) -> Iterator[str]:
        accepted = self.cpu_features.get(context.dtype, ())
        if context.device != "cpu" or context.cpu_features is None or not accepted:
            return
        if not any(set(flags).issubset(context.cpu_features) for flags in accepted):
            named = "; or ".join(", ".join(flags) for flags in accepted)
            yield f"needs a processor with {named} for {context.dtype}, which this one lacks"

    def _against_the_model(self, context: Context) -> Iterator[str]:
        if self.dtypes and context.dtype not in self.dtypes:
            yield f"does not support {context.dtype} (supports {', '.join(self.dtypes)})"
        yield from self._against_the_processor(context)
        if self.kv_cache_dtypes and context.cache_dtype not in self.kv_cache_dtypes:
            yield f"does not support a KV cache in {context.cache_dtype} (supports {', '.join(self.kv_cache_dtypes)})"
        if self.head_dims and context.head_dim not in self.head_dims:
            yield f"does not support head size {context.head_dim} (supports {', '.join(map(str, self.head_dims))})"
        for name in self.lacks:
            if getattr(context, name):
                yield f"does not support {name.replace('_', ' ')}, which this model needs"
        for condition in self.conditions:
            if not condition.holds(context):
                yield condition.reason(context)
        yield from self.lacking(context.libraries)

    def lacking(self, installed: Mapping[str, str]) -> Iterator[str]:
        """A reason for each library that is missing or too old."""
        for library in self.libraries:
            if reason := _against_library(library, installed):
                yield reason

    def _against_the_cast(self, context: Context) -> Iterator[str]:
        cast = context.cast
        if cast is None or not self.is_compiled or context.capability is None:
            return
        if cast.arch != context.arch:
            yield f"is cast for sm_{cast.arch}, but this is {context.place}"
            return
        needs = self.needs_of_a_cast(context)
        for kind, names, held in (
            ("kernels", needs.variants, cast.variants),
            ("FlashInfer modules", needs.modules, cast.modules),
        ):
            missing = sorted(set(names) - held)
            if missing:
                yield f"needs {len(names):,} {kind}; the cast lacks {len(missing):,} of them, such as {missing[0]}"

    def needs_of_a_cast(self, context: Context) -> CastNeeds:
        """The kernels this backend may launch in `context`; empty if it is not compiled."""
        arch = context.arch
        variants = tuple(variant.name for variant in load(self.variants)(arch, context)) if self.variants else ()
        modules = tuple(module.name for module in load(self.modules)(arch, context)) if self.modules else ()
        return CastNeeds(variants, modules)


class CastNeeds(NamedTuple):
    variants: tuple[str, ...]
    modules: tuple[str, ...]


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _known(arch: int) -> bool:
    return any(architecture.number == arch for architecture in ARCHITECTURES.values())


def _against_library(library: str, installed: Mapping[str, str]) -> str | None:
    match = _LIBRARY.fullmatch(library)
    assert match, f"{library!r} is no library with a least version"
    name, least = match["name"], match["least"]
    if name not in installed and name in (cpu.NAME, cpu.PRODUCTS):
        return f"needs Ingot's kernels in C++, which are not compiled here for this processor ({cpu.COMPILES})"
    if name not in installed:
        return f"needs the library {name}, which is not installed"
    if least and _numbers(installed[name]) < _numbers(least):
        return f"needs {name} {least} or newer, but {installed[name]} is installed"
    return None


def _numbers(version: str) -> tuple[int, ...]:
    """The release of a version: "0.6.8.post1" and "0.6.8+cu130" are both 0.6.8."""
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in release[0].split(".")) if release else ()
