"""Checks that find what would fail before anything heavy starts."""

from appliance.preflight.context import CheckResult, LaunchPlan, PreflightContext, Report
from appliance.preflight.runner import run

__all__ = ["CheckResult", "LaunchPlan", "PreflightContext", "Report", "run"]
