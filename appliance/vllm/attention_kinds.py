"""The cache of any decoder, derived from its config.json, including models that only the vllm engine runs.

Kinds of layers: full attention; a sliding window; a latent of keys and values (MLA, DeepSeek-AI 2024), with or without
an indexer that chooses tokens; states of a fixed size for each sequence (gated delta rule, Mamba 2). A config that
speaks of kinds that are not among them tells nothing: `cache_shape` is then None.
"""

from __future__ import annotations

from typing import Final

from appliance.checkpoint.fields import Fields
from appliance.checkpoint.memory.cache_shape import CacheShape, Windowed

_MOST: Final = 1 << 24
FULL, SLIDING, LINEAR, MAMBA, NONE = "full", "sliding", "linear", "mamba", "none"
# What configs call the kinds: `layer_types` and `layers_block_type` by words, Nemotron-H by letters.
_WORDS: Final = {
    "full_attention": FULL,
    "attention": FULL,
    "sliding_attention": SLIDING,
    "linear_attention": LINEAR,
    "mamba": MAMBA,
    "mlp": NONE,
    "moe": NONE,
}
_LETTERS: Final = {"*": FULL, "M": MAMBA, "-": NONE, "E": NONE}
# Keys that mean attention of other kinds, or an arrangement of layers that is not read.
_UNREAD: Final = ("attn_type_list", "attn_layer_period", "block_configs", "is_encoder_decoder", "compress_ratios",
                  "cross_attention_layers", "mamba_d_ssm", "shared_kv_layers", "num_kv_shared_layers")  # fmt: skip
STATE_BYTES: Final = 4  # vLLM keeps inner states in float32
INDEXER_BYTES: Final = 4  # the scale beside an indexer's key in FP8


def cache_shape(fields: Fields, item: int) -> CacheShape | None:
    """`fields` are the decoder's; `item` the bytes of a number in the cache. None if unknown."""
    kinds = layer_kinds(fields)
    if kinds is None or any(fields.given.get(name) for name in _UNREAD):
        return None
    heads = fields.integer("num_attention_heads", 1, _MOST, default=1)
    head_dim = fields.integer("head_dim", 1, _MOST, default=max(fields.integer("hidden_size", 1, _MOST) // heads, 1))
    one = 2 * fields.integer("num_key_value_heads", 1, _MOST, default=heads) * head_dim * item
    if latent := fields.integer("kv_lora_rank", 0, _MOST, default=0):
        one = (latent + fields.integer("qk_rope_head_dim", 0, _MOST, default=0)) * item
        if fields.integer("index_topk", 0, _MOST, default=0):
            one += fields.integer("index_head_dim", 0, _MOST, default=0) + INDEXER_BYTES
    windows: tuple[Windowed, ...] = ()
    if sliding := kinds.count(SLIDING):
        windows = (Windowed(fields.integer("sliding_window", 1, _MOST), sliding * one),)
    states = 0
    if linear := kinds.count(LINEAR):
        states += linear * _delta_state(fields, item)
    if mamba := kinds.count(MAMBA):
        states += mamba * _mamba_state(fields, item)
    return CacheShape(bytes_per_token=kinds.count(FULL) * one, windows=windows, per_sequence=states)


def layer_kinds(fields: Fields) -> list[str] | None:
    """The kind of each layer; None where one is not known."""
    layers = fields.integer("num_hidden_layers", 1, 1 << 12)
    pattern = fields.given.get("hybrid_override_pattern")
    named = fields.given.get("layer_types") or fields.given.get("layers_block_type")
    if isinstance(pattern, str):
        kinds = [_LETTERS.get(letter, "") for letter in pattern]
    elif isinstance(named, list):
        kinds = [_WORDS.get(name, "") if isinstance(name, str) else "" for name in named]
    elif interval := fields.integer("full_attention_interval", 0, 1 << 12, default=0):
        kinds = [FULL if (layer + 1) % interval == 0 else LINEAR for layer in range(layers)]
    elif interval := fields.integer("sliding_window_pattern", 0, 1 << 12, default=0):
        kinds = [FULL if (layer + 1) % interval == 0 else SLIDING for layer in range(layers)]
    elif fields.given.get("ssm_state_size") or fields.given.get("state_size"):
        return None
    elif fields.given.get("sliding_window") and fields.given.get("use_sliding_window", True):
        kinds = [SLIDING] * layers
    else:
        kinds = [FULL] * layers
    return kinds if len(kinds) == layers and all(kinds) else None


def _delta_state(fields: Fields, item: int) -> int:
    """Of one layer with the gated delta rule (Yang et al., 2024): a matrix for each value head, and the last inputs of
    a convolution over keys, queries and values."""
    key, value = (fields.integer(f"linear_{kind}_head_dim", 1, _MOST) for kind in ("key", "value"))
    key_heads, value_heads = (fields.integer(f"linear_num_{kind}_heads", 1, _MOST) for kind in ("key", "value"))
    kernel = fields.integer("linear_conv_kernel_dim", 1, 64, default=4)
    channels = 2 * key_heads * key + value_heads * value
    return value_heads * key * value * STATE_BYTES + channels * (kernel - 1) * item


def _mamba_state(fields: Fields, item: int) -> int:
    """Of one layer of Mamba 2 (Dao and Gu, 2024)."""
    heads, head_dim = fields.integer("mamba_num_heads", 1, _MOST), fields.integer("mamba_head_dim", 1, _MOST)
    state = fields.integer("ssm_state_size", 1, _MOST)
    channels = heads * head_dim + 2 * fields.integer("n_groups", 1, _MOST, default=1) * state
    kernel = fields.integer("conv_kernel", 1, 64, default=4)
    return heads * head_dim * state * STATE_BYTES + channels * (kernel - 1) * item
