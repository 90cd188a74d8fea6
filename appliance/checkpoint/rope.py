"""Rotary position embedding as a config gives it: base, scaling, and how many dimensions of a head are turned."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from appliance.checkpoint.fields import Fields

# What says how many dimensions of a head there are, or are turned; the first that is given.
_DECIDING: Final = ("rotary_dim", "head_dim", "hidden_size")
# What longer contexts multiply cosines and sines by, and scores in DeepSeek's models; 0 for none.
_MSCALES: Final = ("mscale", "mscale_all_dim")
ROPE_TYPES: Final = ("default", "linear", "llama3", "yarn")


class Rope(NamedTuple):
    """`scaling` is None for plain RoPE, otherwise a dict with `rope_type` always there."""

    theta: float
    scaling: dict[str, Any] | None
    rotary_dim: int


def read_rope(fields: Fields, head_dim: int, default_theta: float) -> Rope:
    """From `rope_parameters` (transformers 5) or the older keys. MiniMax-M2 gives `rotary_dim` where others give the
    share of a head as `partial_rotary_factor`, which goes before it."""
    key = "rope_parameters" if fields.mapping("rope_parameters") is not None else "rope_scaling"
    raw, inner = fields.mapping(key), fields.inside(key)
    theta = fields.number("rope_theta", above=1, maximum=1e12, default=default_theta)
    theta = inner.number("rope_theta", above=1, maximum=1e12, default=theta)
    rotary_dim = fields.integer("rotary_dim", 2, head_dim, default=head_dim)
    decides, key = fields, next((name for name in _DECIDING if fields.given.get(name) is not None), "head_dim")
    for holder in (fields, inner):
        if holder.given.get("partial_rotary_factor") is not None:
            rotary_dim = int(head_dim * holder.number("partial_rotary_factor", above=0, maximum=1))
            decides, key = holder, "partial_rotary_factor"
    if rotary_dim % 2 or rotary_dim < 2:
        value = decides.given.get(key, head_dim)
        why = f"RoPE needs an even number of dimensions; this makes {rotary_dim} of {head_dim}."
        decides.refuse(key, why, value=value)
    return Rope(theta, _scaling(fields, inner, raw), rotary_dim)


def _scaling(fields: Fields, inner: Fields, raw: dict[str, Any] | None) -> dict[str, Any] | None:
    rope_type = inner.text("rope_type", default=inner.text("type", default="default"))
    if raw is None or rope_type == "default":
        return None
    scaling: dict[str, Any] = {
        name: value for name, value in raw.items() if name not in ("type", "rope_theta", "partial_rotary_factor")
    } | {"rope_type": rope_type}
    if rope_type in ("linear", "dynamic", "llama3", "yarn"):
        scaling["factor"] = inner.number("factor", minimum=1, maximum=1e6)
        scaling |= {key: inner.number(key, minimum=0, maximum=1e6, default=0) for key in _MSCALES if key in scaling}
    if rope_type in ("llama3", "yarn"):
        original = fields.integer("max_position_embeddings", 1, 1 << 24)
        default = original if rope_type == "yarn" else None
        scaling["original_max_position_embeddings"] = inner.integer(
            "original_max_position_embeddings", 1, 1 << 24, default=default
        )
    if rope_type == "llama3":
        low = scaling["low_freq_factor"] = inner.number("low_freq_factor", above=0, maximum=1e6)
        high = scaling["high_freq_factor"] = inner.number("high_freq_factor", above=0, maximum=1e6)
        if high <= low:
            inner.refuse("high_freq_factor", f"Must be greater than low_freq_factor ({low:g}).")
    if rope_type == "yarn":
        for name in ("beta_fast", "beta_slow", "attention_factor"):
            if inner.given.get(name) is None:
                scaling.pop(name, None)
            else:
                scaling[name] = inner.number(name, minimum=0, maximum=1e6)
        if "truncate" in scaling:
            scaling["truncate"] = inner.boolean("truncate", default=True)
    return scaling
