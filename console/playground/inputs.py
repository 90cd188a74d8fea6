"""The numbers that the playground's settings take: the ranges are those of the profile's sampling defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from appliance.profile.schema import BY_KEY, Type

SAFE_INTEGER: Final = 2**53 - 1
"""The largest whole number that a browser holds exactly; the API itself takes seeds of 64 bits."""


@dataclass(frozen=True)
class NumberInput:
    """One row: `minimum` and `maximum` are inclusive, `above` is an open lower end. `name` is the request's field."""

    name: str
    label: str
    about: str
    default: str
    minimum: float
    maximum: float
    above: float | None = None
    whole: bool = False

    @property
    def wanted(self) -> str:
        """What a value must be, as a message under the field: `Enter a number from 0 to 2.`"""
        kind = "whole number" if self.whole else "number"
        if self.above is not None:
            return f"Enter a {kind} above {self.above:g}, up to {self.maximum:,g}."
        if abs(self.minimum) == self.maximum == SAFE_INTEGER:
            return f"Enter a {kind} of at most 15 digits."
        return f"Enter a {kind} from {self.minimum:g} to {self.maximum:,.12g}."


def _sampling(name: str, label: str, about: str, default: str) -> NumberInput:
    """The row of a sampling default of the profile."""
    setting = BY_KEY[f"sampling-defaults.{name.replace('_', '-')}"]
    lowest = setting.minimum if setting.minimum is not None else setting.above
    assert lowest is not None
    assert setting.maximum is not None
    return NumberInput(
        name=name,
        label=label,
        about=about,
        default=default,
        minimum=lowest,
        maximum=setting.maximum,
        above=setting.above,
        whole=setting.type is Type.INTEGER,
    )


INPUTS: Final = {
    row.name: row
    for row in (
        _sampling("temperature", "Temperature", "0 always picks the most likely token", "1"),
        _sampling("max_tokens", "Max tokens", "Length limit of the answer", "no limit"),
        _sampling("top_p", "Top-p", "1 is off", "1"),
        _sampling("top_k", "Top-k", "0 is off", "0"),
        NumberInput(
            name="seed",
            label="Seed",
            about="The same seed gives the same answer",
            default="random",
            minimum=-SAFE_INTEGER,
            maximum=SAFE_INTEGER,
            whole=True,
        ),
    )
}
"""`default` applies if neither the request nor the profile sets a value."""
