"""Inspects a document before it is saved: problems, effective values, memory, and preflight findings. Takes
milliseconds, so that it can run while somebody types."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from appliance.checkpoint import CheckpointError
from appliance.checkpoint.memory import MemoryPlan
from appliance.explain.report import Report, report
from appliance.explain.words import about, sentences
from appliance.hardware.device import Device, DeviceError
from appliance.hardware.known import UnknownGpuError, known_gpu
from appliance.home import Home
from appliance.plan.effective import EffectiveValue
from appliance.preflight import PreflightContext, Surroundings, run
from appliance.preflight import Report as PreflightReport
from appliance.preflight.fixing import joined
from appliance.profile import document as documents
from appliance.profile.schema import Problem
from appliance.profile.sizes import size_text
from appliance.protocol import Finding, Severity
from console.hardware.machines import Machines, Seen

_ORDER = (Severity.ERROR, Severity.WARNING, Severity.INFO)


@dataclass(frozen=True)
class Inspection:
    """`effective` and `memory` are set as soon as the document is valid and the model's config can be read. `judged_by`
    describes the machine used for the checks."""

    problems: list[Problem] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    effective: Mapping[str, EffectiveValue] = field(default_factory=dict)
    memory: MemoryPlan | None = None
    device: str = ""
    judged_by: str = ""

    @property
    def ordered(self) -> list[Finding]:
        """What keeps it from starting first; otherwise in the order of the checks."""
        return sorted(self.findings, key=lambda finding: _ORDER.index(finding.severity))

    @property
    def all_fixes(self) -> dict[str, Any] | None:
        """One patch for all findings that have one, where those are several."""
        patched = [finding for finding in self.findings if finding.fix and finding.fix.patch]
        patch = joined(patched, "all")
        return patch if len(patched) > 1 and len(patch) > 1 else None

    @property
    def could_start(self) -> bool:
        return not self.problems and not any(finding.severity == "error" for finding in self.findings)


@dataclass(frozen=True)
class Selection:
    """Which backend each op gets on `gpu`, a known GPU's name, or on this machine if it is empty; `problem` says why
    there is none."""

    gpu: str
    report: Report | None = None
    problem: str = ""

    @property
    def about(self) -> str:
        return about(self.report) if self.report else ""

    @property
    def sentences(self) -> list[str]:
        return sentences(self.report) if self.report else []


class Inspector:
    """Inspects documents for one state folder, on the machine that would run them: the engine's."""

    def __init__(self, home: Home, environ: Mapping[str, str] = os.environ, machines: Machines | None = None) -> None:
        """Without `machines`, this process's own machine with `environ` is judged by."""
        self._home = home
        self._machines = machines or Machines(home, environ=environ)

    def inspect(self, document: Mapping[str, Any]) -> Inspection:
        """Reads files and may ask the driver: call it in a thread."""
        if problems := documents.check(document):
            return Inspection(problems=problems)
        seen = self._machines.look()
        found = self._preflight(document, seen)
        values = found.effective.values if found.effective else {}
        if found.memory is not None and found.memory.estimated:
            values = _as_estimated(values, found.memory)
        return Inspection(
            findings=found.findings,
            judged_by=seen.whose,
            effective=values,
            memory=found.memory,
            device=_named(found.device) if found.memory and found.device else "",
        )

    def preflight(self, document: Mapping[str, Any], listen: tuple[str, int] | None = None) -> list[Finding]:
        """Every check; the one of the engine's port only where `listen` says it: a running engine holds it."""
        return self._preflight(document, self._machines.look(), listen).findings

    def _preflight(
        self, document: Mapping[str, Any], seen: Seen, listen: tuple[str, int] | None = None
    ) -> PreflightReport:
        context = PreflightContext(
            home=self._home,
            document=dict(document),
            environ=seen.machine.environ,
            inventory=seen.machine.for_next,
            listen=listen,
            surroundings=Surroundings.here() if seen.is_here else None,
            machine=None if seen.is_here else seen.machine,
        )
        return run(context)

    def selection(self, document: Mapping[str, Any], gpu: str = "") -> Selection:
        """Reads the model's config: call it in a thread."""
        if documents.check(document):
            return Selection(gpu, problem="Correct the settings first.")
        try:
            known = known_gpu(gpu) if gpu else None
            profile = documents.load(document)
            found = report(profile, self._home, machine=self._machines.look().machine, gpu=known)
        except CheckpointError as error:
            return Selection(gpu, problem=f"{error.message} {error.fix.text}")
        except (DeviceError, UnknownGpuError) as error:
            return Selection(gpu, problem=str(error))
        return Selection(known.name if known else "", report=found)

    def devices(self) -> list[tuple[str, str]]:
        """(value, words) of each device that a profile can name here, beside `auto`."""
        gpus = self._machines.look().machine.inventory.gpus
        named = [(gpu.uuid, f"{gpu.name}, {size_text(gpu.memory_bytes)} ({gpu.uuid})") for gpu in gpus]
        return [("cpu", "cpu"), *named]


def _named(device: Device) -> str:
    return str(device.gpu) if device.gpu else "the CPU"


def _as_estimated(values: Mapping[str, EffectiveValue], memory: MemoryPlan) -> dict[str, EffectiveValue]:
    """What the native engine's plan made of the memory, as vLLM's does."""
    planned = {"kv-cache-memory-bytes": memory.cache_bytes, "max-model-len": memory.max_model_len}
    why = "an estimate of vLLM's memory use"
    return dict(values) | {
        key: EffectiveValue(value, "engine", why)
        for key, value in planned.items()
        if key in values and values[key].source == "engine"
    }
