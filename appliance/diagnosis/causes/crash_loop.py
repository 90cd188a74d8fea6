"""Restarted again and again into the same failure."""

from appliance.diagnosis.cause import Cause

CAUSES = (
    Cause(
        family="crash-loop",
        name="restart-loop",
        signs=("restart counter is at", "crashloopbackoff", "back-off restarting", "start request repeated too quickly",
               "restarting (", "(restarting)", "start-limit-hit", "restart count", "restarted too often"),
        details=r"counter is at (?P<times>\d{1,9})",
        summary="The engine is restarted again and again and fails each time.",
        fix="Stop it, and read the first error of one start; then start it by hand.",
        line=True,
        warning=True,
        deadly=True,
        vague=True,
    ),
)  # fmt: skip
