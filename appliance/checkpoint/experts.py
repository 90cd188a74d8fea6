"""The mixture of experts that a config describes: its layers, its sizes, and how its router chooses."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from appliance.checkpoint.fields import Fields
from kernels.moe_routing import Routing

# Experts of all layers together: some four times what the largest published models have. A config with more is
# damaged, and listing its tensors would take all memory.
MOST_EXPERTS: Final = 1 << 17
# Within a block, the table of the experts that each token goes to.
TABLE: Final = "gate.tid2eid"
# Where the number of experts may stand.
_COUNTS: Final = ("num_local_experts", "num_experts")


class ExpertFamily(msgspec.Struct, frozen=True, kw_only=True):
    """What an architecture fixes about its experts. `block` is what its checkpoints call the layer that holds them,
    `parts` what they call an expert's gate, up and down projection. `count` is the key of the number of experts that is
    named where a config lacks it, `inner` that of an expert's inner size. `renormalise` None means what
    `norm_topk_prob` says. `every_layer` is False where keys say which layers are sparse. `selection_bias_name` is that
    of the bias within the block.
    """

    block: str
    parts: tuple[str, str, str]
    count: str = "num_experts"
    inner: str = "intermediate_size"
    scoring: str = "softmax"
    selection_bias: bool = False
    selection_bias_name: str = "e_score_correction_bias"
    renormalise: bool | None = True
    every_layer: bool = True


class SharedExperts(msgspec.Struct, frozen=True, kw_only=True):
    """Together one gated feed-forward layer. `name` is what checkpoints call it within the block of the experts; `gate`
    a product with the token whose sigmoid weights the result, or "" where it counts in full; `parts` are the names of
    its gate, up and down projection."""

    name: str
    intermediate_size: int
    gate: str = ""
    parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    """`layers` have the mixture where others have a dense feed-forward layer. With `selection_bias` a bias, which is
    in the checkpoint, is added to the scores for choosing. What the router gives is in `router_dtype`, or in the
    model's own where that is "". `shared` are experts that every token goes through. In `hashed` layers a token's id
    says which experts it goes to, by a table; there is no bias then. Gate and up are clamped to `limit`."""

    block: str
    parts: tuple[str, str, str]
    num_experts: int
    intermediate_size: int
    routing: Routing
    selection_bias: bool
    layers: frozenset[int]
    selection_bias_name: str = ""
    router_dtype: Literal["", "float32"] = ""
    shared: SharedExperts | None = None
    hashed: frozenset[int] = frozenset()
    limit: float | None = None


def read_experts(fields: Fields, family: ExpertFamily | None, num_layers: int) -> Experts | None:
    """None where the model has no sparse layer."""
    if family is None:
        return None
    layers = frozenset(range(num_layers)) if family.every_layer else _sparse_layers(fields, num_layers)
    key = next((name for name in _COUNTS if fields.given.get(name) is not None), family.count)
    num_experts = fields.integer(key, 0, 1 << 16)
    if not layers or (not num_experts and not family.every_layer):
        return None
    if not 1 <= num_experts * len(layers) <= MOST_EXPERTS:
        fields.refuse(key, f"The {len(layers)} layers may have 1 to {MOST_EXPERTS:,} experts in total.")
    top_k = fields.integer("num_experts_per_tok", 1, num_experts)
    if family.scoring == "sigmoid":
        scoring = fields.text("scoring_func", default=family.scoring)
        if scoring not in ("softmax", "sigmoid"):
            fields.refuse("scoring_func", "Must be softmax or sigmoid.")
        bias = fields.boolean("use_routing_bias", default=family.selection_bias)
    else:
        scoring, bias = family.scoring, family.selection_bias
    groups, top_groups = _groups(fields, num_experts, top_k, bias)
    renormalise = family.renormalise
    return Experts(
        block=family.block,
        parts=family.parts,
        num_experts=num_experts,
        intermediate_size=fields.integer(family.inner, 1, 1 << 22),
        routing=Routing(
            top_k=top_k,
            scoring=scoring,
            renormalise=fields.boolean("norm_topk_prob", default=False) if renormalise is None else renormalise,
            num_groups=groups,
            top_groups=top_groups,
            scale=fields.number("routed_scaling_factor", above=0, maximum=1e6, default=1.0),
        ),
        selection_bias=bias,
        selection_bias_name=family.selection_bias_name,
        layers=layers,
    )


def _sparse_layers(fields: Fields, num_layers: int) -> frozenset[int]:
    """Every `decoder_sparse_step`-th layer, but for those in `mlp_only_layers`."""
    step = fields.integer("decoder_sparse_step", 1, 1 << 12, default=1)
    dense = fields.given.get("mlp_only_layers") or []
    if not isinstance(dense, list) or any(type(layer) is not int for layer in dense):
        fields.refuse("mlp_only_layers", "Must be a list of layer numbers.")
    return frozenset(layer for layer in range(num_layers) if (layer + 1) % step == 0) - frozenset(dense)


def _groups(fields: Fields, num_experts: int, top_k: int, bias: bool) -> tuple[int, int]:
    """Groups of experts and how many of them a token may use. 0, 1 and absence all mean that there are none: a kernel
    for grouped routing must not be asked then (MiniMax-M2)."""
    groups = fields.integer("n_group", 0, num_experts, default=0)
    if groups <= 1:
        return 0, 0
    if num_experts % groups or (bias and num_experts // groups < 2):
        fields.refuse("n_group", f"Must divide the {num_experts} experts into groups of two or more.")
    top_groups = fields.integer("topk_group", 1, groups)
    if top_k > top_groups * (num_experts // groups):
        fields.refuse("topk_group", f"Too few groups for the {top_k} experts of a token.")
    return groups, top_groups
