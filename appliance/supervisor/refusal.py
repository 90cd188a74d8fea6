"""A launch that could not even listen, recorded like any other that preflight refuses."""

from __future__ import annotations

from pathlib import Path

from appliance.engine_process.launch_journal import LaunchJournal
from appliance.home import Home
from appliance.launches.event_stream import EventStream
from appliance.protocol import Finding, Fix, Phase, Severity, State
from appliance.supervisor.preflight import run_preflight, tell_findings
from appliance.supervisor.source import read_source


def refuse_address(
    home: Home, profile_file: Path | None, listen: tuple[str, int], error: OSError, started: float
) -> str:
    """The message for the person: who uses the address, and what else is wrong."""
    source = read_source(home, profile_file)
    findings = run_preflight(home, source.document, listen=listen).findings
    if not any(finding.field == "port" and finding.severity is Severity.ERROR for finding in findings):
        # In use when it was tried, free when it was checked: report what happened.
        findings = [_taken(listen, error), *findings]
    launch = LaunchJournal(
        home,
        EventStream(home),
        launch_id=source.launch,
        document=source.document,
        revision=source.revision,
        started=started,
    )
    launch.change(State.PREFLIGHT)
    launch.begin_phase(Phase.PREFLIGHT)
    launch.change(State.FAILED, tell_findings(launch, findings))
    return "\n".join(_line(finding) for finding in findings if finding.severity is Severity.ERROR)


def _taken(listen: tuple[str, int], error: OSError) -> Finding:
    host, port = listen
    return Finding(
        id="port-unavailable",
        severity=Severity.ERROR,
        message=f"Cannot listen on {host}:{port}: {error.strerror or error}.",
        field="port",
        value=port,
        fix=Fix(text="Choose another address with --host and --port."),
    )


def _line(finding: Finding) -> str:
    return f"{finding.message} {finding.fix.text}" if finding.fix else finding.message
