"""`ingot check`: what would keep the engine from starting, without starting it."""

from __future__ import annotations

import os
from typing import Any

import click
import msgspec

from appliance import hardware
from appliance.home import Home
from appliance.preflight.context import PreflightContext, Report
from appliance.preflight.runner import run
from appliance.preflight.surroundings import Surroundings
from appliance.profile.chosen import NoSuchProfileError, chosen_document
from appliance.profile.schema import ProfileError
from appliance.protocol import Finding, Fix, Severity


@click.command()
@click.option(
    "--profile", "source", metavar="FILE", help="A profile's file; without it, the active profile is checked."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address that the engine is to listen on.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="And its port.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object, for programs.")
def check(source: str | None, host: str, port: int, as_json: bool) -> None:
    """Say in a second what would keep a profile from starting.

    Exits with 1 when a finding is an error.
    """
    home = Home.from_environment()
    try:
        chosen = chosen_document(source, home)
    except NoSuchProfileError as error:
        raise click.UsageError(str(error)) from error
    except ProfileError as error:
        report = Report(findings=[_unreadable(source, problem.message, problem.remedy) for problem in error.problems],
                        plan=None)  # fmt: skip
    else:
        context = PreflightContext(
            home=home,
            document=chosen,
            environ=os.environ,
            inventory=hardware.inventory(),
            listen=(host, port),
            surroundings=Surroundings.here(),
            source=source,
        )
        report = run(context)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(_as_data(report))).decode())
    else:
        from appliance.preflight.printing import show  # rich takes longer to import than the checks to run

        show(report)
    if any(finding.severity is Severity.ERROR for finding in report.findings):
        raise SystemExit(1)


def _unreadable(source: str | None, message: str, remedy: str) -> Finding:
    return Finding(
        id="profile-invalid",
        severity=Severity.ERROR,
        message=message,
        evidence=(source,) if source else (),
        fix=Fix(text=remedy),
    )


def _as_data(report: Report) -> dict[str, Any]:
    """What a program gets: the findings as `protocol.Finding`, the checks, and the plan's values with their sources."""
    plan = report.plan
    return {
        "could-start": plan is not None,
        "findings": report.findings,
        "checks": report.checks,
        "effective": plan.effective.values if plan and plan.effective else None,
        "memory": plan.memory if plan else None,
    }
