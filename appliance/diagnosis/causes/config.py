"""A setting of the launch is wrong."""

from appliance.diagnosis.cause import Cause

CAUSES = (
    Cause(
        family="config",
        name="unknown-argument",
        pattern=r"(unrecognized arguments|no such option):? (?P<argument>\S+)",
        summary="The engine does not know the argument {argument}.",
        fix="Remove the argument from the profile.",
    ),
    Cause(
        family="config",
        name="setting-out-of-range",
        pattern=r"ValueError: (?P<setting>(max[-_]\w+|gpu[-_]memory[-_]utilization|block[-_]size|[\w-]*dtype))\b",
        summary="The engine does not accept the value of the setting {setting}.",
        fix="Remove this setting from the profile, so that its default holds.",
    ),
)
