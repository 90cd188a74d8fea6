"""What a preflight is about, and what it leads to: findings, and a plan where nothing stands against the launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from appliance.checkpoint.memory import MemoryPlan
from appliance.hardware.device import Device
from appliance.hardware.engine_machine import Machine
from appliance.hardware.machine import Inventory
from appliance.home import Home
from appliance.plan.effective import Effective
from appliance.plan.launch import LaunchPlan
from appliance.preflight.surroundings import Surroundings
from appliance.protocol import Finding


@dataclass(frozen=True, kw_only=True)
class PreflightContext:
    """`listen` is the address that the front door is to take; None where that is not asked, since the front door that
    asks holds it. `running` is the launch that this one would replace: what it holds will be free by then.
    `surroundings` is None where this process is not on the engine's machine: what only that one shows is then not
    judged, and `machine` its description of itself. `source` is how the profile was named to a command, for the
    commands that the fixes name."""

    home: Home
    document: Mapping[str, Any]
    environ: Mapping[str, str]
    inventory: Inventory
    listen: tuple[str, int] | None = None
    running: LaunchPlan | None = None
    surroundings: Surroundings | None = None
    machine: Machine | None = None
    source: str | None = None


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One check as it went. `skipped` means that a check before it, on which it builds, found an error."""

    id: str
    title: str
    outcome: Literal["passed", "warning", "error", "skipped"]
    group: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Report:
    """`plan` is there only when no finding is an error, and this process could carry it out. `device`, `effective` and
    `memory` are what such a plan is made of; each is set if it is known, whatever else is wrong."""

    findings: list[Finding]
    plan: LaunchPlan | None
    device: Device | None = None
    effective: Effective | None = None
    memory: MemoryPlan | None = None
    checks: list[CheckResult] = field(default_factory=list)
