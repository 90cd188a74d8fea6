"""`config.json` and `generation_config.json` of a model folder, as the engine needs them.

Both spellings are read: transformers 4 (`rope_theta`, `rope_scaling`, `torch_dtype`) and transformers 5
(`rope_parameters`, `dtype`). What a family implies without saying it (Qwen2's attention bias, Qwen3's norms of query
and key, the names of Mixtral's experts) is a row of `FAMILIES`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.experts import read_experts
from appliance.checkpoint.families import FAMILIES, Family
from appliance.checkpoint.fields import Fields
from appliance.checkpoint.json_file import read_object
from appliance.checkpoint.layout import check_fp8_shapes
from appliance.checkpoint.model_config import FULL, SLIDING, ModelConfig
from appliance.checkpoint.quantization import read_quantization
from appliance.checkpoint.rope import read_rope

__all__ = ["DTYPES", "SUPPORTED_ARCHITECTURES", "ModelConfig", "config_path", "read_architecture", "read_config"]


SUPPORTED_ARCHITECTURES: Final[tuple[str, ...]] = tuple(FAMILIES)
DTYPES: Final = ("float32", "bfloat16", "float16")


def read_architecture(folder: Path) -> str:
    """The first of config.json's `architectures`."""
    path = config_path(folder)
    names = read_object(path, "config").get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str) and names[0].isprintable():
        return names[0][:128]
    raise CheckpointError(
        "config-invalid",
        "config.json does not name an architecture.",
        file=path,
        field="architectures",
        value=names,
        remedy='`architectures` must be a list with one name, such as ["LlamaForCausalLM"]; copy the original '
        "config.json.",
    )


def config_path(folder: Path) -> Path:
    """Raises CheckpointError where the folder is of another format than Hugging Face's."""
    path = folder / "config.json"
    if not path.exists():
        gguf = next((p.name for p in sorted(folder.glob("*.gguf"))), None)
        if gguf:
            raise CheckpointError(
                "model-is-gguf",
                f"{folder.name} contains a GGUF file ({gguf}) but no config.json. Ingot's engines do not read GGUF.",
                file=folder / gguf,
                field="model.path",
                remedy="Get the model's original folder with config.json and safetensors files.",
            )
        snapshot = next((p.parent for p in sorted(folder.glob("snapshots/*/config.json"))), None)
        if snapshot:
            inner = snapshot.relative_to(folder)
            raise CheckpointError(
                "config-missing",
                f"{folder.name} is a hub cache. The model is in {inner}.",
                file=path,
                field="model.path",
                remedy=f"Add `/{inner}` to the path.",
            )
    return path


def read_config(folder: Path) -> ModelConfig:
    """The config of a supported architecture. Raises CheckpointError that names file, field, value and remedy."""
    architecture = read_architecture(folder)
    path = folder / "config.json"
    family = FAMILIES.get(architecture)
    if family is None:
        raise CheckpointError(
            "architecture-unsupported",
            f"The native engine does not support {architecture}.",
            file=path,
            field="architectures",
            value=architecture,
            evidence=(f"supported: {', '.join(SUPPORTED_ARCHITECTURES)}",),
            remedy="Choose a model of a supported architecture. Many others run with `engine: vllm`.",
        )
    fields = Fields(path, read_object(path, "config"))
    hidden_size = fields.integer("hidden_size", 1, 1 << 20)
    heads = fields.integer("num_attention_heads", 1, 1 << 14)
    kv_heads = fields.integer("num_key_value_heads", 1, 1 << 14, default=heads)
    if heads % kv_heads:
        fields.refuse("num_key_value_heads", f"Must divide num_attention_heads ({heads}) evenly.")
    head_dim = fields.integer("head_dim", 1, 1 << 14, default=family.head_dim or hidden_size // heads)
    if fields.given.get("head_dim") is None and not family.head_dim and hidden_size % heads:
        fields.refuse("hidden_size", f"Must be a multiple of num_attention_heads ({heads}).")
    layers = fields.integer("num_hidden_layers", 1, 1 << 12)
    rope = read_rope(fields, head_dim, family.rope_theta)
    vocab_size = fields.integer("vocab_size", 1, 1 << 24)
    window, layer_types = _sliding_window(fields, family, layers)
    attention_bias = fields.boolean("attention_bias", default=False)
    mlp_bias = fields.boolean("mlp_bias", default=False)
    config = ModelConfig(
        architecture=architecture,
        model_type=fields.text("model_type", default=family.model_type),
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size", 1, 1 << 22),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        hidden_act=fields.text("hidden_act", default="silu"),
        max_position_embeddings=fields.integer("max_position_embeddings", 1, 1 << 24),
        rms_norm_eps=fields.number("rms_norm_eps", above=0, maximum=1, default=family.rms_norm_eps),
        rope_theta=rope.theta,
        rope_scaling=rope.scaling,
        rotary_dim=rope.rotary_dim,
        tie_word_embeddings=fields.boolean("tie_word_embeddings", default=False),
        attention_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        attention_output_bias=attention_bias if family.output_bias is None else family.output_bias,
        mlp_bias=mlp_bias if family.mlp_bias is None else family.mlp_bias,
        qk_norm=_qk_norm(fields, family),
        sliding_window=window,
        layer_types=layer_types,
        dtype=_dtype(fields),
        bos_token_id=_token_ids(fields, "bos_token_id", vocab_size)[0],
        eos_token_ids=_eos_token_ids(folder, fields, vocab_size),
        experts=read_experts(fields, family.experts, layers),
        fp8=read_quantization(fields),
    )
    if config.fp8 is not None:
        check_fp8_shapes(config, config.fp8, fields)
    return config


def _qk_norm(fields: Fields, family: Family) -> str:
    """MiniMax-M2's configs say which; what else they might say no published model does."""
    if family.qk_norm != "all":
        return family.qk_norm
    if fields.text("qk_norm_type", default="per_layer") != "per_layer":
        fields.refuse("qk_norm_type", "The native engine only supports per_layer.")
    return family.qk_norm if fields.boolean("use_qk_norm", default=True) else ""


def _sliding_window(fields: Fields, family: Family, layers: int) -> tuple[int | None, tuple[str, ...] | None]:
    if not family.sliding:
        return None, None
    if family.sliding != "all" and not fields.boolean("use_sliding_window", default=False):
        return None, None
    if "sliding_window" not in fields.given and family.sliding_window is None:
        return None, None
    window = fields.integer_or_none("sliding_window", 1, 1 << 24, default=family.sliding_window)
    if window is None:
        return None, None
    if family.sliding != "upper":
        return window, (SLIDING,) * layers
    given = fields.given.get("layer_types")
    if given is not None:
        if not isinstance(given, list) or len(given) != layers or any(t not in (FULL, SLIDING) for t in given):
            fields.refuse("layer_types", f"Must list {FULL} or {SLIDING} for each of the {layers} layers.")
        types = tuple(given)
    else:
        first = fields.integer("max_window_layers", 0, 1 << 12, default=28)
        types = tuple(SLIDING if i >= first else FULL for i in range(layers))
    return (window, types) if SLIDING in types else (None, None)


def _dtype(fields: Fields) -> str | None:
    name = "dtype" if fields.given.get("dtype") is not None else "torch_dtype"
    return fields.text(name, default="").removeprefix("torch.") or None


def _token_ids(fields: Fields, name: str, vocab_size: int) -> tuple[int | None, ...]:
    """The ids under a key that holds one id, a list of ids, null or nothing; never empty."""
    value = fields.given.get(name)
    ids = value if isinstance(value, list) else [value]
    for token in ids:
        good = isinstance(token, int) and not isinstance(token, bool) and -1 <= token < vocab_size
        if token is not None and not good:
            fields.refuse(name, f"Token ids go from 0 to {vocab_size - 1} (vocab_size - 1).")
    return tuple(token for token in ids if token != -1) or (None,)  # -1: old LLaMA configs for "none"


def _eos_token_ids(folder: Path, fields: Fields, vocab_size: int) -> tuple[int, ...]:
    ids = _token_ids(fields, "eos_token_id", vocab_size)
    path = folder / "generation_config.json"
    if path.exists():
        ids += _token_ids(Fields(path, read_object(path, "generation-config")), "eos_token_id", vocab_size)
    return tuple(dict.fromkeys(token for token in ids if token is not None))
