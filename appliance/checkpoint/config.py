"""`config.json` and `generation_config.json` of a model folder, as the engine needs them.

Both spellings are read: transformers 4 (`rope_theta`, `rope_scaling`, `torch_dtype`) and transformers 5
(`rope_parameters`, `dtype`). What a family implies without saying it (Qwen2's attention bias, Qwen3's norms of query
and key) is a row of `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.fields import Fields
from appliance.checkpoint.json_file import read_object


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """What an architecture fixes or leaves to its config. A bias of None is what `attention_bias` or `mlp_bias` says;
    `head_dim` 0 means hidden_size / num_attention_heads where the config has no head_dim."""

    model_type: str
    qkv_bias: bool | None = False
    output_bias: bool | None = False
    mlp_bias: bool | None = False
    qk_norm: bool = False
    head_dim: int = 0
    # Where a sliding window is on: in every layer ("all"), above max_window_layers if use_sliding_window ("upper").
    sliding: str = ""


FAMILIES: Final[Mapping[str, Family]] = {
    "LlamaForCausalLM": Family(model_type="llama", qkv_bias=None, output_bias=None, mlp_bias=None),
    "MistralForCausalLM": Family(model_type="mistral", sliding="all"),
    "Qwen2ForCausalLM": Family(model_type="qwen2", qkv_bias=True, sliding="upper"),
    "Qwen3ForCausalLM": Family(
        model_type="qwen3", qkv_bias=None, output_bias=None, qk_norm=True, head_dim=128, sliding="upper"
    ),
}
SUPPORTED_ARCHITECTURES: Final[tuple[str, ...]] = tuple(FAMILIES)
FULL, SLIDING = "full_attention", "sliding_attention"
DTYPES: Final = ("float32", "bfloat16", "float16")
ROPE_TYPES: Final = ("default", "linear", "llama3", "yarn")


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A dense decoder's shape. `rope_scaling` is None for plain RoPE, otherwise a dict with `rope_type` always there;
    `layer_types` names each layer's attention, and is None where all of them are full."""

    architecture: str
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    hidden_act: str
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    partial_rotary_factor: float
    tie_word_embeddings: bool
    attention_bias: bool
    attention_output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    sliding_window: int | None
    layer_types: tuple[str, ...] | None
    dtype: str | None
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    quantization: dict[str, Any] | None

    @property
    def context_length(self) -> int:
        """The longest context that the model was made for: max_position_embeddings, times what RoPE scaling adds.

        Llama 3's scaling is already counted in max_position_embeddings; yarn's and linear's are not (as vLLM reads
        them). https://github.com/vllm-project/vllm/blob/v0.11.0/vllm/config/model.py `_get_and_verify_max_len`.
        """
        scaling = self.rope_scaling or {}
        if scaling.get("rope_type") not in ("linear", "yarn", "dynamic"):
            return self.max_position_embeddings
        base = self.max_position_embeddings
        if scaling["rope_type"] == "yarn":
            base = scaling.get("original_max_position_embeddings", base)
        return max(int(base * scaling["factor"]), self.max_position_embeddings)


def read_architecture(folder: Path) -> str:
    """The first of config.json's `architectures`."""
    path = config_path(folder)
    names = read_object(path, "config").get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str) and names[0].isprintable():
        return names[0][:128]
    raise CheckpointError(
        "config-invalid",
        "config.json does not say its architecture.",
        file=path,
        field="architectures",
        value=names,
        remedy='It must be a list of one name, such as ["LlamaForCausalLM"]; copy the original config.json.',
    )


def config_path(folder: Path) -> Path:
    """Raises CheckpointError where the folder is of another format than Hugging Face's."""
    path = folder / "config.json"
    if not path.exists():
        gguf = next((p.name for p in sorted(folder.glob("*.gguf"))), None)
        if gguf:
            raise CheckpointError(
                "model-is-gguf",
                f"{folder.name} holds a GGUF file ({gguf}) and no config.json; no engine here reads GGUF.",
                file=folder / gguf,
                field="model.path",
                remedy="Get the model's original folder with config.json and safetensors files.",
            )
        snapshot = next((p.parent for p in sorted(folder.glob("snapshots/*/config.json"))), None)
        if snapshot:
            inner = snapshot.relative_to(folder)
            raise CheckpointError(
                "config-missing",
                f"{folder.name} is a hub cache; the model is in its folder {inner}.",
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
            f"The native engine does not run {architecture}.",
            file=path,
            field="architectures",
            value=architecture,
            evidence=(f"supported: {', '.join(SUPPORTED_ARCHITECTURES)}",),
            remedy="Choose a model of a supported architecture. One like this runs with `engine: vllm`, "
            "where Ingot comes with vLLM.",
        )
    fields = Fields(path, read_object(path, "config"))
    hidden_size = fields.integer("hidden_size", 1, 1 << 20)
    heads = fields.integer("num_attention_heads", 1, 1 << 14)
    kv_heads = fields.integer("num_key_value_heads", 1, 1 << 14, default=heads)
    if heads % kv_heads:
        fields.refuse("num_key_value_heads", f"It must divide num_attention_heads, which is {heads}.")
    head_dim = fields.integer("head_dim", 1, 1 << 14, default=family.head_dim or hidden_size // heads)
    if "head_dim" not in fields.given and not family.head_dim and hidden_size % heads:
        fields.refuse("hidden_size", f"It must be a multiple of num_attention_heads, which is {heads}.")
    layers = fields.integer("num_hidden_layers", 1, 1 << 12)
    partial = fields.number("partial_rotary_factor", above=0, maximum=1, default=1.0)
    theta, scaling, partial = _rope(fields, partial)
    if int(head_dim * partial) % 2 or head_dim * partial < 2:
        fields.refuse("head_dim", "RoPE needs an even number of dimensions.", value=head_dim)
    vocab_size = fields.integer("vocab_size", 1, 1 << 24)
    window, layer_types = _sliding_window(fields, family, layers)
    attention_bias = fields.boolean("attention_bias", default=False)
    mlp_bias = fields.boolean("mlp_bias", default=False)
    return ModelConfig(
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
        rms_norm_eps=fields.number("rms_norm_eps", above=0, maximum=1, default=1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        partial_rotary_factor=partial,
        tie_word_embeddings=fields.boolean("tie_word_embeddings", default=False),
        attention_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        attention_output_bias=attention_bias if family.output_bias is None else family.output_bias,
        mlp_bias=mlp_bias if family.mlp_bias is None else family.mlp_bias,
        qk_norm=family.qk_norm,
        sliding_window=window,
        layer_types=layer_types,
        dtype=_dtype(fields),
        bos_token_id=_token_ids(fields, "bos_token_id", vocab_size)[0],
        eos_token_ids=_eos_token_ids(folder, fields, vocab_size),
        quantization=fields.mapping("quantization_config"),
    )


def _rope(fields: Fields, partial: float) -> tuple[float, dict[str, Any] | None, float]:
    """theta, scaling and the rotary share, from `rope_parameters` (transformers 5) or the older keys."""
    key = "rope_parameters" if fields.mapping("rope_parameters") is not None else "rope_scaling"
    raw = fields.mapping(key)
    theta = fields.number("rope_theta", above=1, maximum=1e12, default=10000.0)
    if raw is None:
        return theta, None, partial
    inner = fields.inside(key)
    theta = inner.number("rope_theta", above=1, maximum=1e12, default=theta)
    partial = inner.number("partial_rotary_factor", above=0, maximum=1, default=partial)
    rope_type = inner.text("rope_type", default=inner.text("type", default="default"))
    if rope_type == "default":
        return theta, None, partial
    scaling: dict[str, Any] = {
        name: value for name, value in raw.items() if name not in ("type", "rope_theta", "partial_rotary_factor")
    } | {"rope_type": rope_type}
    if rope_type in ("linear", "dynamic", "llama3", "yarn"):
        scaling["factor"] = inner.number("factor", minimum=1, maximum=1e6)
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
            inner.refuse("high_freq_factor", f"It must be greater than low_freq_factor, which is {low:g}.")
    if rope_type == "yarn":
        for name in ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim"):
            if inner.given.get(name) is None:
                scaling.pop(name, None)
            else:
                scaling[name] = inner.number(name, minimum=0, maximum=1e6)
        if "truncate" in scaling:
            scaling["truncate"] = inner.boolean("truncate", default=True)
    return theta, scaling, partial


def _sliding_window(fields: Fields, family: Family, layers: int) -> tuple[int | None, tuple[str, ...] | None]:
    if not family.sliding:
        return None, None
    if family.sliding == "upper" and not fields.boolean("use_sliding_window", default=False):
        return None, None
    # transformers gives both families 4096 where the key is absent; an explicit null turns the window off.
    window = fields.integer_or_none("sliding_window", 1, 1 << 24, default=4096)
    if window is None:
        return None, None
    if family.sliding == "all":
        return window, (SLIDING,) * layers
    given = fields.given.get("layer_types")
    if given is not None:
        if not isinstance(given, list) or len(given) != layers or any(t not in (FULL, SLIDING) for t in given):
            fields.refuse("layer_types", f"It must name {FULL} or {SLIDING} for each of the {layers} layers.")
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
            fields.refuse(name, f"Token ids are integers from 0 to vocab_size - 1, which is {vocab_size - 1}.")
    return tuple(token for token in ids if token != -1) or (None,)  # -1: old LLaMA configs for "none"


def _eos_token_ids(folder: Path, fields: Fields, vocab_size: int) -> tuple[int, ...]:
    ids = _token_ids(fields, "eos_token_id", vocab_size)
    path = folder / "generation_config.json"
    if path.exists():
        ids += _token_ids(Fields(path, read_object(path, "generation-config")), "eos_token_id", vocab_size)
    return tuple(dict.fromkeys(token for token in ids if token is not None))
