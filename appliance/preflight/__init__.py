"""Checks that find what would fail before anything heavy starts."""

from appliance.preflight.context import CheckResult, PreflightContext, Report
from appliance.preflight.runner import run
from appliance.preflight.surroundings import Surroundings

__all__ = ["CheckResult", "PreflightContext", "Report", "Surroundings", "run"]
