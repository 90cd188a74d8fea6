"""The settings of drafts, by vLLM's names: their rows, and what they become."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from appliance.profile.setting import Setting, Type

Method = Literal["none", "ngram", "mtp"]

ROWS: Final[tuple[Setting, ...]] = (
    Setting(
        key="speculative-config.method",
        type=Type.TEXT,
        default="none",
        allowed=("none", "ngram", "mtp"),
        group="Drafts",
        help="What guesses the next tokens, so that one step can verify several; answers stay the same. `ngram`: what "
        "followed the last time the text went like this. `mtp`: the model's own multi-token prediction head.",
    ),
    Setting(
        key="speculative-config.num-speculative-tokens",
        type=Type.INTEGER,
        default=None,
        none="4 by n-grams, 1 by a head",
        minimum=1,
        maximum=16,
        unit="tokens",
        group="Drafts",
        help="The most tokens that are guessed for a request in one step.",
    ),
)

_MOST: Final[dict[Method, int]] = {"none": 0, "ngram": 4, "mtp": 1}  # where the profile does not say it


class SpeculativeConfig(msgspec.Struct, frozen=True):
    method: Method = "none"
    num_speculative_tokens: int | None = None

    @property
    def most(self) -> int:
        """Drafts of a request in one step."""
        return _MOST[self.method] and (self.num_speculative_tokens or _MOST[self.method])
