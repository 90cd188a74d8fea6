"""Repeated restarts into the same failure."""

from appliance.diagnosis.cause import Cause

CAUSES = (
    Cause(
        family="crash-loop",
        name="restart-loop",
        signs=("restart counter is at", "crashloopbackoff", "back-off restarting", "start request repeated too quickly",
               "restarting (", "(restarting)", "start-limit-hit", "restart count", "restarted too often"),
        details=r"counter is at (?P<times>\d{1,9})",
        summary="The engine restarts repeatedly and fails each time.",
        fix="Stop it, start it once by hand, and read the first error.",
        line=True,
        warning=True,
        deadly=True,
        vague=True,
    ),
)  # fmt: skip
