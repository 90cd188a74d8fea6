"""Tiny random checkpoints in Hugging Face format, made without torch, for tests that need a real model folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.tiny_shapes import INDEXED, LATENT, is_hybrid, tensor_shapes

Array = np.ndarray[Any, Any]
# Gated delta layers beside one of attention.
_HYBRID: dict[str, Any] = {
    "head_dim": 32,
    "full_attention_interval": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_conv_kernel_dim": 4,
    "partial_rotary_factor": 0.25,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 40,
}
_LATENT: dict[str, Any] = {
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "n_group": 4,
    "topk_group": 2,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 0,
}
# 64 heads: with few of them many tokens have no score but 0.
_INDEXER: dict[str, Any] = {"index_n_heads": 64, "index_head_dim": 32, "index_topk": 48}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32},
    "mixtral": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    },
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "head_dim": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "minimax_m2": {
        "architectures": ["MiniMaxM2ForCausalLM"],
        "model_type": "minimax_m2",
        "head_dim": 32,
        "rotary_dim": 16,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "scoring_func": "sigmoid",
        "use_qk_norm": True,
        "qk_norm_type": "per_layer",
        "use_routing_bias": True,
    },
    "deepseek_v3": _LATENT | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"},
    "deepseek_v32": _LATENT | _INDEXER | {"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32"},
    "glm_moe_dsa": _LATENT
    | _INDEXER
    | {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "glm_moe_dsa",
        "n_group": 1,
        "topk_group": 1,
        "indexer_rope_interleave": True,
        "indexer_types": ["full", "shared", "full"],
    },
    "qwen3_next": _HYBRID
    | _EXPERTS
    | {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "qwen3_5": _HYBRID | {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text"},
    "qwen3_5_moe": _HYBRID | _EXPERTS | {"architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text"},
}
# What the names of tensors end with that stay in float32, whatever the model's dtype.
IN_FLOAT32 = ("e_score_correction_bias", "A_log", "dt_bias", "indexer.k_norm.bias")
# Sizes of which every kernel has a form, for tests on a GPU and of weights in blocks.
ALIGNED: dict[str, Any] = {
    "hidden_size": 192,
    "intermediate_size": 256,
    "moe_intermediate_size": 128,
    "head_dim": 64,
}
_ALIGNED_LATENT: dict[str, Any] = {
    "q_lora_rank": 128,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
_ALIGNED_INDEXER: dict[str, Any] = {"index_head_dim": 128}
# A key head's parts are whole blocks then, and so are a query head and its gate.
_ALIGNED_HYBRID: dict[str, Any] = {
    "head_dim": 128,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "shared_expert_intermediate_size": 128,
}
FP8: dict[str, Any] = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
# What no published checkpoint of gated delta layers quantises.
_IN_FULL: dict[str, Any] = {"modules_to_not_convert": ["lm_head", "in_proj_ba", "in_proj_b", "in_proj_a"]}
BASE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "torch_dtype": "float32",
    "initializer_range": 0.02,
}
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def aligned(family: str) -> dict[str, Any]:
    """`ALIGNED`, with the sizes that only some families have."""
    hybrid = is_hybrid(FAMILIES[family])
    latent = (_ALIGNED_LATENT if family in LATENT else {}) | (_ALIGNED_INDEXER if family in INDEXED else {})
    return ALIGNED | latent | (_ALIGNED_HYBRID if hybrid else {})


def block_fp8(family: str) -> dict[str, Any]:
    """A `quantization_config` as published for the family."""
    return FP8 | (_IN_FULL if is_hybrid(FAMILIES[family]) else {})


def write_checkpoint(
    folder: Path,
    family: str = "llama",
    *,
    dtype: str = "float32",
    seed: int = 0,
    scale: float = 0.2,
    repeat: bool = False,
    **config: Any,
) -> Path:
    """Write config.json, model.safetensors, tokenizer.json and tokenizer_config.json; keys in `config` override.

    Weights are normal with a standard deviation of `scale`: large enough that two tokens rarely tie. With a
    `quantization_config` such as FP8, those of the layers that it covers are rounded to it. With `repeat` a large
    matrix repeats its first rows: for tests of size and speed, whose gigabytes would take minutes to draw.
    """
    folder.mkdir(parents=True, exist_ok=True)
    merged = BASE | FAMILIES[family] | {"torch_dtype": dtype} | config
    (folder / "config.json").write_text(json.dumps(merged, indent=1))
    rng = np.random.default_rng(seed)
    tensors: dict[str, tuple[str, Array]] = {}
    for name, shape in tensor_shapes(merged):
        drawn = (min(shape[0], _DRAWN_ROWS), *shape[1:]) if repeat else shape
        if name.endswith("norm.weight"):
            values = norm_centre(name, merged) + 0.1 * rng.standard_normal(drawn)
        else:
            values = scale * rng.standard_normal(drawn)
        if name.endswith(IN_FLOAT32):
            tensors[name] = _stored(values, "float32", shape)
        elif quantised(name, merged.get("quantization_config")):
            codes, scales = quantise(values)
            tensors[name] = ("F8_E4M3", np.resize(codes, shape))
            tensors[name + "_scale_inv"] = _stored(scales, "float32", (-(-shape[0] // 128), scales.shape[1]))
        else:
            tensors[name] = _stored(values, dtype, shape)
    save(tensors, folder / "model.safetensors")
    write_tokenizer(folder, merged["vocab_size"])
    return folder


def write_plain_twin(checkpoint: Path, folder: Path) -> Path:
    """The same model with its quantised weights multiplied out in float32, which transformers reads."""
    import torch
    from safetensors.torch import load_file, save_file

    from kernels.fp8_linear.reference import dequantise

    shutil.copytree(checkpoint, folder)
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    tensors = load_file(checkpoint / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_scale_inv")]:
        weight = name.removesuffix("_scale_inv")
        tensors[weight] = dequantise(tensors[weight], tensors.pop(name), torch.float32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


# -------------------------------------------------------------------------------------------------------------- Formats


def quantised(name: str, config: dict[str, Any] | None) -> bool:
    """Whether published checkpoints hold the tensor in FP8: projections, but for the modules that the config names."""
    module = name.removesuffix(".weight")
    skipped = () if config is None else config.get("modules_to_not_convert", ())
    ends = ("_proj", "_proj_with_mqa", "indexer.wq_b", "indexer.wk")
    projection = module.endswith(ends) or ".experts." in module or ".in_proj_" in module
    if module.endswith(("indexer.weights_proj", "eh_proj")):
        return False
    covered = not any(f".{module}.".find(f".{skip}.") >= 0 for skip in skipped)
    return config is not None and name.endswith(".weight") and projection and covered


def quantise(values: Array) -> tuple[Array, Array]:
    """[rows, columns] -> its codes in float8 e4m3, and a scale for each block of 128 x 128."""
    rows, columns = values.shape
    scales = np.empty((-(-rows // 128), -(-columns // 128)))
    codes = np.empty(values.shape, dtype=np.uint8)
    for i, j in np.ndindex(*scales.shape):
        block = values[i * 128 : (i + 1) * 128, j * 128 : (j + 1) * 128]
        scales[i, j] = np.abs(block).max() / 448
        above = np.searchsorted(_E4M3, np.abs(block) / scales[i, j]).clip(1, len(_E4M3) - 1)
        low, high = _E4M3[above - 1], _E4M3[above]
        nearest = np.where(np.abs(block) / scales[i, j] - low < high - np.abs(block) / scales[i, j], above - 1, above)
        codes[i * 128 : (i + 1) * 128, j * 128 : (j + 1) * 128] = nearest | (block < 0) * 128
    return codes, scales


# What the codes 0 .. 126 stand for: a 4-bit exponent with bias 7, a 3-bit mantissa, exponent 0 for multiples of 2^-9.
_E4M3 = np.array([m / 512 if e == 0 else (8 + m) / 8 * 2.0 ** (e - 7) for e in range(16) for m in range(8)][:127])


# A multiple of 128, so that the blocks of quantised weights repeat as well.
_DRAWN_ROWS = 512


def _stored(values: Array, dtype: str, shape: tuple[int, ...]) -> tuple[str, Array]:
    """`values` as a checkpoint holds them, their rows repeated to fill `shape`."""
    kind, stored = "F32", values.astype(np.float32)
    if dtype == "bfloat16":
        kind, stored = "BF16", (stored.view(np.uint32) >> 16).astype(np.uint16)  # truncated, which is enough for a test
    elif dtype == "float16":
        kind, stored = "F16", values.astype(np.float16)
    return kind, np.resize(stored, shape)


def save(tensors: dict[str, tuple[str, Array]], path: Path) -> None:
    """A safetensors file; numpy's own writer knows neither BF16 nor FP8."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, values) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": list(values.shape),
            "data_offsets": [offset, offset + values.nbytes],
        }
        offset += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, values in tensors.values():
            file.write(np.ascontiguousarray(values).tobytes())


def norm_centre(name: str, config: dict[str, Any]) -> float:
    """What the weights of norms lie around: 0 where the model adds 1 to them."""
    return 0.0 if is_hybrid(config) and not name.endswith("linear_attn.norm.weight") else 1.0


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """A byte-level tokenizer without merges: ids 0..2 are special, then the chat roles, then one id a byte."""
    special = ["<pad>", "<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*special, *alphabet])}
    for i in range(len(vocab), vocab_size):
        vocab[f"<unused{i}>"] = i
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
