"""The settings of a profile that a request may start by naming its model: their rows, and what they become."""

from __future__ import annotations

from typing import Final

import msgspec

from appliance.profile.setting import Setting, Type

ROWS: Final[tuple[Setting, ...]] = (
    Setting(
        key="on-request.start",
        type=Type.BOOLEAN,
        default=False,
        group="On request",
        help="Start this profile when a request names its model, in place of the profile that runs. The active profile "
        "can always be asked for.",
    ),
    Setting(
        key="on-request.api-keys",
        type=Type.TEXT,
        default=None,
        none="every client",
        max_length=2048,
        group="On request",
        help="The names of the API keys whose requests may start this profile, separated by commas. Once it runs, "
        "every client may use it.",
    ),
    Setting(
        key="on-request.min-runtime",
        type=Type.NUMBER,
        default=10,
        minimum=0,
        maximum=86_400,
        unit="seconds",
        group="On request",
        help="How long this profile serves before a request for another model may replace it.",
    ),
    Setting(
        key="on-request.drain-within",
        type=Type.NUMBER,
        default=300,
        minimum=0,
        maximum=86_400,
        unit="seconds",
        group="On request",
        help="How long requests of this profile may take to finish when another model is asked for. Then they are "
        "ended.",
    ),
    Setting(
        key="on-request.max-wait",
        type=Type.NUMBER,
        default=600,
        minimum=1,
        maximum=86_400,
        unit="seconds",
        group="On request",
        help="How long a request waits for this profile to run.",
    ),
    Setting(
        key="on-request.max-waiting",
        type=Type.INTEGER,
        default=64,
        minimum=1,
        maximum=4096,
        unit="requests",
        group="On request",
        help="How many requests wait for this profile; others are refused.",
    ),
)


class OnRequest(msgspec.Struct, frozen=True):
    """Whether requests may start the profile, and the limits of that. `api_keys` None: with any key, or none."""

    start: bool = False
    api_keys: str | None = None
    min_runtime: float = 10.0
    drain_within: float = 300.0
    max_wait: float = 600.0
    max_waiting: int = 64

    def may_be_started_by(self, key: str) -> bool:
        """`key` is the name of an API key."""
        return self.api_keys is None or key in (name.strip() for name in self.api_keys.split(","))
