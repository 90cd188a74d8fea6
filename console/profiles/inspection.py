"""What can be said about a document before it is saved: problems, the effective value of every setting, whether it
fits, and what preflight would find. Takes milliseconds, so that it can be asked while somebody types."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from appliance.checkpoint import CheckpointError, locate
from appliance.checkpoint.config import read_config
from appliance.checkpoint.memory import MemoryPlan
from appliance.explain.report import Report, report
from appliance.explain.words import about, sentences
from appliance.hardware import Inventory, inventory
from appliance.hardware.device import DeviceError
from appliance.hardware.known import UnknownGpuError, known_gpu
from appliance.home import Home
from appliance.preflight import PreflightContext, run
from appliance.profile import document as documents
from appliance.profile.effective import Effective, EffectiveValue, resolve
from appliance.profile.schema import Problem
from appliance.profile.sizes import size_text
from appliance.protocol import Finding

INVENTORY_FOR_S = 5.0
"""How long a look at the hardware is good for while somebody types."""


@dataclass(frozen=True)
class Inspection:
    """`effective` and `memory` are there as soon as the document is valid and the model's config can be read."""

    problems: list[Problem] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    effective: Mapping[str, EffectiveValue] = field(default_factory=dict)
    memory: MemoryPlan | None = None
    device: str = ""

    @property
    def could_start(self) -> bool:
        return not self.problems and not any(finding.severity == "error" for finding in self.findings)


@dataclass(frozen=True)
class Selection:
    """Which backend each op gets on `gpu`, a known GPU's name, or on this machine where it is empty; `problem` says
    why that cannot be told."""

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
    """Inspects documents for one state folder, on this machine."""

    def __init__(self, home: Home, environ: Mapping[str, str] = os.environ) -> None:
        self._home = home
        self._environ = environ
        self._inventory: Inventory | None = None
        self._seen = 0.0

    def inspect(self, document: Mapping[str, Any]) -> Inspection:
        """Reads files and may ask the driver: call it in a thread."""
        if problems := documents.check(document):
            return Inspection(problems=problems)
        findings = self.preflight(document)
        effective = self._effective(document)
        if effective is None:
            return Inspection(findings=findings)
        return Inspection(
            findings=findings,
            effective=effective.values,
            memory=effective.memory,
            device=str(effective.device.gpu) if effective.device.gpu else "this machine's CPU",
        )

    def preflight(self, document: Mapping[str, Any]) -> list[Finding]:
        """Every check but those on the engine's port, which a running engine holds."""
        context = PreflightContext(
            home=self._home,
            document=dict(document),
            environ=self._environ,
            inventory=self._look(),
            listen=None,
        )
        return run(context).findings

    def selection(self, document: Mapping[str, Any], gpu: str = "") -> Selection:
        """Reads the model's config: call it in a thread."""
        if documents.check(document):
            return Selection(gpu, problem="Mend the settings first.")
        try:
            known = known_gpu(gpu) if gpu else None
            profile = documents.load(document)
            found = report(profile, self._home, inventory=self._look(), gpu=known, environ=self._environ)
        except CheckpointError as error:
            return Selection(gpu, problem=f"{error.message} {error.fix.text}")
        except (DeviceError, UnknownGpuError) as error:
            return Selection(gpu, problem=str(error))
        return Selection(known.name if known else "", report=found)

    def devices(self) -> list[tuple[str, str]]:
        """(value, words) of each device that a profile can name here, beside `auto`."""
        gpus = [(gpu.uuid, f"{gpu.name}, {size_text(gpu.memory_bytes)} ({gpu.uuid})") for gpu in self._look().gpus]
        return [("cpu", "cpu"), *gpus]

    def _effective(self, document: Mapping[str, Any]) -> Effective | None:
        """None where preflight's findings say what is in the way."""
        profile = documents.load(document)
        try:
            config = read_config(locate(profile.model.path, self._home))
            return resolve(profile, config=config, inventory=self._look(), environ=self._environ)
        except (CheckpointError, DeviceError):
            return None

    def _look(self) -> Inventory:
        now = time.monotonic()
        if self._inventory is None or now - self._seen > INVENTORY_FOR_S:
            self._inventory, self._seen = inventory(), now
        return self._inventory
