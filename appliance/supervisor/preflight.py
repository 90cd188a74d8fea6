"""Preflight as a supervisor runs it, and its findings in a launch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from appliance.engine_process.launch_journal import LaunchJournal
from appliance.home import Home
from appliance.protocol import Finding, Severity

if TYPE_CHECKING:
    from appliance.plan.launch import LaunchPlan
    from appliance.preflight import Report


def run_preflight(
    home: Home,
    document: dict[str, Any],
    listen: tuple[str, int] | None = None,
    running: LaunchPlan | None = None,
) -> Report:
    """Blocking. Without `listen` the port is not checked: it is this process that holds it. What `running` holds in
    memory counts as free: it ends before the profile starts."""
    from appliance import hardware, preflight  # late: the first answer over HTTP does not wait for them

    context = preflight.PreflightContext(
        home=home,
        document=document,
        environ=os.environ,
        inventory=hardware.inventory(),
        listen=listen,
        running=running,
        surroundings=preflight.Surroundings.here(),
    )
    return preflight.run(context)


def tell_findings(launch: LaunchJournal, findings: Sequence[Finding]) -> str:
    """Reports them all; the message of the first error, or an empty text."""
    for finding in findings:
        launch.report(finding)
    errors = [finding.message for finding in findings if finding.severity is Severity.ERROR]
    return errors[0] if errors else ""
