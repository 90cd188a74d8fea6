"""`ingot check`: what would keep the engine from starting, without starting it; `--fix` applies the fixes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
import msgspec

from appliance import hardware
from appliance.home import Home
from appliance.preflight.context import PreflightContext, Report
from appliance.preflight.fixing import Fixed, Which, apply_fixes
from appliance.preflight.runner import run
from appliance.preflight.saving import NotSavedError, save_active, save_file
from appliance.preflight.surroundings import Surroundings
from appliance.profile import document as documents
from appliance.profile.chosen import NoSuchProfileError, chosen_document
from appliance.profile.schema import ProfileError
from appliance.protocol import Finding, Fix, Severity
from appliance.vllm.cache_packs.working_copy import place_of
from appliance.vllm.command_line import Place, render
from appliance.vllm.plan import VllmPlan


@click.command()
@click.option("--profile", "source", metavar="FILE", help="The profile file to check. [default: the active profile]")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address the engine will listen on.")
@click.option(
    "--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="The port the engine will listen on."
)
@click.option(
    "--fix",
    "which",
    is_flag=False,
    flag_value="errors",
    type=click.Choice(["errors", "all"]),
    help="Apply the fixes that are changes of the profile: of errors, or (--fix=all) of warnings too. A file is "
    "changed in place and kept beside it as it was; the active profile gets another revision, which is not started. "
    "Fixes that are commands are shown and never run.",
)
@click.option("--each", is_flag=True, help="Show every check and how long it took.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
def check(source: str | None, host: str, port: int, which: Which | None, each: bool, as_json: bool) -> None:
    """Say in a second what would keep a profile from starting.

    Exits with 1 if an error remains.
    """
    home = Home.from_environment()
    fixed, saved = None, ""
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
            inventory=hardware.inventory(home=home),
            listen=(host, port),
            surroundings=Surroundings.here(),
            source=source,
        )
        if which is None:
            report = run(context)
        else:
            fixed = apply_fixes(context, which)
            report = fixed.report
            saved = _save(home, source, fixed) if fixed.applied else ""
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(_as_data(report, fixed, saved, home))).decode())
    else:
        from appliance.preflight.printing import show, show_fixed  # rich takes longer to import than the checks to run

        if fixed is not None:
            show_fixed(fixed, documents.diff(chosen, fixed.document), saved)
        show(report, each=each)
        if command := _command(report, home):
            click.echo(f"It runs {command}")
    if any(finding.severity is Severity.ERROR for finding in report.findings):
        raise SystemExit(1)


def _save(home: Home, source: str | None, fixed: Fixed) -> str:
    try:
        if source is not None and Path(source).is_file():
            return save_file(Path(source), fixed.patch)
        note = f"Fixed by `ingot check --fix`: {', '.join(fixed.patch)}."
        return save_active(home, fixed.document, note)
    except NotSavedError as error:
        raise click.ClickException(str(error)) from error


def _unreadable(source: str | None, message: str, remedy: str) -> Finding:
    return Finding(
        id="profile-invalid",
        severity=Severity.ERROR,
        message=message,
        evidence=(source,) if source else (),
        fix=Fix(text=remedy),
    )


def _command(report: Report, home: Home) -> str | None:
    """What starts vLLM; the native engine is not a command of anybody else's."""
    if not isinstance(report.plan, VllmPlan):
        return None
    place = Place.below(home)
    if report.plan.pack is not None:
        place = msgspec.structs.replace(place, caches=place_of(report.plan.pack, place.caches.parent))
    return render(report.plan, place).shown(os.environ)


def _as_data(report: Report, fixed: Fixed | None, saved: str, home: Home) -> dict[str, Any]:
    """What a program gets; docs/preflight.md describes it."""
    plan = report.plan
    return {
        "could-start": plan is not None,
        "seconds": sum(check.seconds for check in report.checks),
        "findings": report.findings,
        "checks": report.checks,
        "effective": plan.effective.values if plan and plan.effective else None,
        "memory": plan.memory if plan else None,
        "command": _command(report, home),
        "fixed": None
        if fixed is None
        else {
            "findings": [{"id": one.finding.id, "patch": one.patch} for one in fixed.applied],
            "document": fixed.document,
            "saved": saved,
        },
    }
