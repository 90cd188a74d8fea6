"""Checks that find what would fail before anything heavy starts."""

from appliance.preflight.context import CheckResult, PreflightContext, Report
from appliance.preflight.plans import LaunchPlan, NativePlan, VllmPlan
from appliance.preflight.runner import run
from appliance.preflight.surroundings import Surroundings

__all__ = ["CheckResult", "LaunchPlan", "NativePlan", "PreflightContext", "Report", "Surroundings", "VllmPlan", "run"]
