"""How configs say which layers have a sliding window, and how long it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from appliance.checkpoint.families.decoder import no_windows
from appliance.checkpoint.fields import Fields

FULL, SLIDING = "full_attention", "sliding_attention"
Windows = Callable[[Fields, int], Sequence[int | None]]
DEFAULT: Final = 4096  # where a window is on, and the config has no such key


def in_every_layer(default: int | None = DEFAULT) -> Windows:
    """Of the length that `sliding_window` says, or `default` where the key is absent; null and None mean none."""

    def windows(fields: Fields, num_layers: int) -> Sequence[int | None]:
        if "sliding_window" not in fields.given:
            return (default,) * num_layers
        return (_window(fields),) * num_layers

    return windows


def where_switched_on(fields: Fields, num_layers: int) -> Sequence[int | None]:
    """In every layer, if `use_sliding_window` is true."""
    if not fields.boolean("use_sliding_window", default=False):
        return no_windows(fields, num_layers)
    return (_window(fields),) * num_layers


def in_upper_layers(fields: Fields, num_layers: int) -> Sequence[int | None]:
    """If `use_sliding_window` is true, in the layers that `layer_types` names, or from `max_window_layers` on."""
    window = where_switched_on(fields, num_layers)[0]
    if window is None:
        return no_windows(fields, num_layers)
    given = fields.given.get("layer_types")
    if given is not None:
        if not isinstance(given, list) or len(given) != num_layers or any(t not in (FULL, SLIDING) for t in given):
            fields.refuse("layer_types", f"Must list {FULL} or {SLIDING} for each of the {num_layers} layers.")
        return tuple(window if kind == SLIDING else None for kind in given)
    first = fields.integer("max_window_layers", 0, 1 << 12, default=28)
    return tuple(window if layer >= first else None for layer in range(num_layers))


def _window(fields: Fields) -> int | None:
    return fields.integer_or_none("sliding_window", 1, 1 << 24, default=DEFAULT)
