"""The names and shapes of a tiny checkpoint's tensors, as published checkpoints of its family have them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

INDEXED = ("deepseek_v32", "glm_moe_dsa")
LATENT = ("deepseek_v3", *INDEXED)
SPARSE = ("mixtral", "qwen3_moe", "minimax_m2", "qwen3_next", "qwen3_5_moe", *LATENT)


def is_hybrid(config: dict[str, Any]) -> bool:
    return "linear_num_key_heads" in config


def tensor_shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The names and shapes that published checkpoints give a model of `tests.tiny.FAMILIES`."""
    hidden = config["hidden_size"]
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"] + config.get("num_nextn_predict_layers", 0)):
        at = f"model.layers.{i}."
        if i >= config["num_hidden_layers"]:
            yield from ((f"{at}{norm}.weight", (hidden,)) for norm in ("enorm", "hnorm", "shared_head.norm"))
            yield at + "eh_proj.weight", (hidden, 2 * hidden)
            yield at + "embed_tokens.weight", (config["vocab_size"], hidden)
            yield at + "shared_head.head.weight", (config["vocab_size"], hidden)
        yield at + "input_layernorm.weight", (hidden,)
        yield at + "post_attention_layernorm.weight", (hidden,)
        if is_linear(config, i):
            yield from _linear_shapes(config, at)
        elif config["model_type"] in LATENT:
            yield from _latent_shapes(config, at + "self_attn.")
            if has_indexer(config, i):
                yield from _indexer_shapes(config, at + "self_attn.indexer.")
        else:
            yield from _attention_shapes(config, at)
        if is_sparse(config, i):
            yield from _expert_shapes(config, at)
        else:
            yield from _dense_shapes(config, at)
    if is_hybrid(config) and config.get("mtp_num_hidden_layers"):
        yield from _hybrid_head_shapes(config, "mtp.")
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], hidden)


def _dense_shapes(config: dict[str, Any], at: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    for name, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
        yield at + f"mlp.{name}_proj.weight", shape
        if config.get("mlp_bias"):
            yield at + f"mlp.{name}_proj.bias", shape[:1]


def _hybrid_head_shapes(config: dict[str, Any], at: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, block = config["hidden_size"], f"{at}layers.0."
    for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        yield f"{at}{norm}.weight", (hidden,)
    yield f"{at}fc.weight", (hidden, 2 * hidden)
    yield f"{block}input_layernorm.weight", (hidden,)
    yield f"{block}post_attention_layernorm.weight", (hidden,)
    yield from _attention_shapes(config, block)
    yield from (_expert_shapes if "num_experts" in config else _dense_shapes)(config, block)


def _latent_shapes(config: dict[str, Any], at: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, heads, rank = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    query = heads * (config["qk_nope_head_dim"] + config["qk_rope_head_dim"])
    biased = [(f"{at}kv_a_proj_with_mqa", rank + config["qk_rope_head_dim"])]
    if query_rank := config["q_lora_rank"]:
        biased.append((f"{at}q_a_proj", query_rank))
        yield f"{at}q_a_layernorm.weight", (query_rank,)
        yield f"{at}q_b_proj.weight", (query, query_rank)
    else:
        yield f"{at}q_proj.weight", (query, hidden)
    for name, rows in biased:
        yield f"{name}.weight", (rows, hidden)
        if config.get("attention_bias"):
            yield f"{name}.bias", (rows,)
    yield f"{at}o_proj.weight", (hidden, heads * config["v_head_dim"])
    if config.get("attention_bias"):
        yield f"{at}o_proj.bias", (hidden,)
    yield f"{at}kv_a_layernorm.weight", (rank,)
    yield f"{at}kv_b_proj.weight", (heads * (config["qk_nope_head_dim"] + config["v_head_dim"]), rank)


def has_indexer(config: dict[str, Any], layer: int) -> bool:
    if "index_topk" not in config:
        return False
    kinds = config.get("indexer_types") or config.get("index_topk_pattern") or "F" * (layer + 1)
    return layer >= len(kinds) or kinds[layer] in ("full", "F")  # a head that drafts always has one


def _indexer_shapes(config: dict[str, Any], at: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    heads, dim, hidden = config["index_n_heads"], config["index_head_dim"], config["hidden_size"]
    yield f"{at}wq_b.weight", (heads * dim, config["q_lora_rank"])
    yield f"{at}wk.weight", (dim, hidden)
    yield f"{at}k_norm.weight", (dim,)
    yield f"{at}k_norm.bias", (dim,)
    yield f"{at}weights_proj.weight", (heads, hidden)


def _attention_shapes(config: dict[str, Any], at: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, kind = config["hidden_size"], config["model_type"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    for name, rows in (("q", 2 * heads if is_hybrid(config) else heads), ("k", kv_heads), ("v", kv_heads)):
        yield at + f"self_attn.{name}_proj.weight", (rows * head_dim, hidden)
        if kind == "qwen2" or config.get("attention_bias"):
            yield at + f"self_attn.{name}_proj.bias", (rows * head_dim,)
    yield at + "self_attn.o_proj.weight", (hidden, heads * head_dim)
    if (kind in ("llama", "qwen3", "qwen3_moe") or is_hybrid(config)) and config.get("attention_bias"):
        yield at + "self_attn.o_proj.bias", (hidden,)
    if kind in ("qwen3", "qwen3_moe") or is_hybrid(config):
        yield at + "self_attn.q_norm.weight", (head_dim,)
        yield at + "self_attn.k_norm.weight", (head_dim,)
    if kind == "minimax_m2":
        yield at + "self_attn.q_norm.weight", (heads * head_dim,)
        yield at + "self_attn.k_norm.weight", (kv_heads * head_dim,)


def is_linear(config: dict[str, Any], layer: int) -> bool:
    kinds = config.get("layer_types")
    if not is_hybrid(config):
        return False
    return kinds[layer] == "linear_attention" if kinds else (layer + 1) % config["full_attention_interval"] != 0


def _linear_shapes(config: dict[str, Any], at: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, heads = config["hidden_size"], config["linear_num_value_heads"]
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = heads * config["linear_value_head_dim"]
    if config["model_type"] == "qwen3_next":
        yield at + "linear_attn.in_proj_qkvz.weight", (2 * keys + 2 * values, hidden)
        yield at + "linear_attn.in_proj_ba.weight", (2 * heads, hidden)
    else:
        yield at + "linear_attn.in_proj_qkv.weight", (2 * keys + values, hidden)
        yield at + "linear_attn.in_proj_z.weight", (values, hidden)
        yield at + "linear_attn.in_proj_b.weight", (heads, hidden)
        yield at + "linear_attn.in_proj_a.weight", (heads, hidden)
    yield at + "linear_attn.conv1d.weight", (2 * keys + values, 1, config["linear_conv_kernel_dim"])
    yield at + "linear_attn.A_log", (heads,)
    yield at + "linear_attn.dt_bias", (heads,)
    yield at + "linear_attn.norm.weight", (config["linear_value_head_dim"],)
    yield at + "linear_attn.out_proj.weight", (hidden, values)


def is_sparse(config: dict[str, Any], layer: int) -> bool:
    if config.get("mlp_layer_types"):
        kinds = config["mlp_layer_types"]
        return layer >= len(kinds) or kinds[layer] == "sparse"
    if config["model_type"] in LATENT:
        return layer >= config["first_k_dense_replace"] and layer % config["moe_layer_freq"] == 0
    if config["model_type"] in ("qwen3_moe", "qwen3_next"):
        return (layer + 1) % config["decoder_sparse_step"] == 0 and layer not in config["mlp_only_layers"]
    return config["model_type"].removesuffix("_text") in SPARSE


_PARTS = ("gate_proj", "up_proj", "down_proj")


def _expert_shapes(config: dict[str, Any], at: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, kind = config["hidden_size"], config["model_type"]
    own = kind in ("mixtral", "minimax_m2")
    name, (gate, up, down) = ("block_sparse_moe", ("w1", "w3", "w2")) if own else ("mlp", _PARTS)
    inner = config["intermediate_size"] if own else config["moe_intermediate_size"]
    count = next(config[key] for key in ("num_local_experts", "num_experts", "n_routed_experts") if config.get(key))
    yield f"{at}{name}.gate.weight", (count, hidden)
    if kind in LATENT:
        yield f"{at}{name}.gate.e_score_correction_bias", (count,)
        if shared := (config["n_shared_experts"] or 0) * inner:
            yield f"{at}{name}.shared_experts.{gate}.weight", (shared, hidden)
            yield f"{at}{name}.shared_experts.{up}.weight", (shared, hidden)
            yield f"{at}{name}.shared_experts.{down}.weight", (hidden, shared)
    if kind == "minimax_m2" and config["use_routing_bias"]:
        yield f"{at}{name}.e_score_correction_bias", (count,)
    for expert in range(count):
        yield f"{at}{name}.experts.{expert}.{gate}.weight", (inner, hidden)
        yield f"{at}{name}.experts.{expert}.{up}.weight", (inner, hidden)
        yield f"{at}{name}.experts.{expert}.{down}.weight", (hidden, inner)
    if is_hybrid(config):
        inner = config["shared_expert_intermediate_size"]
        yield f"{at}{name}.shared_expert.gate_proj.weight", (inner, hidden)
        yield f"{at}{name}.shared_expert.up_proj.weight", (inner, hidden)
        yield f"{at}{name}.shared_expert.down_proj.weight", (hidden, inner)
        yield f"{at}{name}.shared_expert_gate.weight", (1, hidden)
