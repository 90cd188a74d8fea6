"""Sizes, and a number format, that a model's config.json gives otherwise than its weights have them: the weights are
what was trained."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.json_file import read_object, read_text
from appliance.checkpoint.safetensors import TensorEntry, read_index
from appliance.diagnosis.shell_words import is_operand, sed_pattern

CONFIG: Final = "config.json"
# Numbers that are stored as they are multiplied: a quantised weight has other sizes than the matrix that it stands for.
PLAIN: Final = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# How config.json says in which of them they are; it may also name one in which to compute.
FORMAT_KEYS: Final = ("torch_dtype", "dtype")
FORMATS: Final = (*PLAIN.values(), "float64", "half", "float", "double", "auto")
LAYER: Final = re.compile(r"(?:^|\.)layers\.(\d{1,4})\.")
LAYERS: Final = "num_hidden_layers"
# With more differences than this it is the config of another model.
MOST: Final = 3
# What makes the number of layers, or their width, say something else.
WITH_OTHERS: Final = ("num_nextn_predict_layers", "n_routed_experts", "num_experts", "num_local_experts", "text_config",
                      "vision_config", "quantization_config")  # fmt: skip


class Difference(NamedTuple):
    """`given` is what config.json has, `right` what the weights have."""

    key: str
    given: Any
    right: int | str


def differences(folder: Path) -> tuple[Difference, ...]:
    """Of a dense language model in plain numbers; empty for any other, and where its files cannot be read or have
    little in common."""
    try:
        config, tensors = read_object(folder / CONFIG, "config"), read_index(folder).tensors
    except CheckpointError:
        return ()
    if any(config.get(key) for key in WITH_OTHERS) or any(entry.dtype not in PLAIN for entry in tensors.values()):
        return ()
    found = tuple(
        Difference(key, config[key], right)
        for key, right in _sizes(tensors, config).items()
        if key in config and config[key] != right and not _may_lack(key, config[key], right)
    )
    return (*found, *_unknown_format(config, tensors)) if len(found) <= MOST else ()


def _unknown_format(config: Mapping[str, Any], tensors: Mapping[str, TensorEntry]) -> Iterator[Difference]:
    kinds = Counter(entry.dtype for entry in tensors.values())
    for key in FORMAT_KEYS:
        given = config.get(key)
        if kinds and isinstance(given, str) and given.removeprefix("torch.") not in FORMATS:
            yield Difference(key, given, PLAIN[kinds.most_common(1)[0][0]])


def _may_lack(key: str, given: Any, right: int) -> bool:
    """Whether the weights may rather be incomplete: a model is not served with fewer layers than it has."""
    return key == LAYERS and type(given) is int and given > right


def _sizes(tensors: Mapping[str, TensorEntry], config: Mapping[str, Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    layers = {int(layer[1]) for name in tensors if (layer := LAYER.search(name)) is not None}
    if layers and len(layers) == max(layers) + 1:
        found[LAYERS] = len(layers)
    if (embedding := _matrix(tensors, "embed_tokens.weight")) is not None:
        found["vocab_size"], found["hidden_size"] = embedding
    if (gate := _matrix(tensors, "layers.0.mlp.gate_proj.weight")) is not None:
        found["intermediate_size"] = gate[0]
    queries, keys = (_matrix(tensors, f"layers.0.self_attn.{name}_proj.weight") for name in "qk")
    head_dim = _head_dim(config, found.get("hidden_size"))
    if queries is None or keys is None or head_dim is None:
        return found
    if queries[0] % head_dim == 0 and keys[0] % head_dim == 0:
        found["num_attention_heads"], found["num_key_value_heads"] = queries[0] // head_dim, keys[0] // head_dim
    return found


def _head_dim(config: Mapping[str, Any], hidden_size: int | None) -> int | None:
    given, heads = config.get("head_dim"), config.get("num_attention_heads")
    if type(given) is int:
        return given if given > 0 else None
    if given is None and hidden_size and type(heads) is int and heads > 0 and hidden_size % heads == 0:
        return hidden_size // heads
    return None


def _matrix(tensors: Mapping[str, TensorEntry], end: str) -> tuple[int, int] | None:
    found = [entry.shape for name, entry in tensors.items() if name == end or name.endswith(f".{end}")]
    return (found[0][0], found[0][1]) if len(found) == 1 and len(found[0]) == 2 else None


def correcting_command(folder: Path, wrong: tuple[Difference, ...]) -> str | None:
    """What writes the right numbers into config.json, where each stands there once, as it was read."""
    path = folder / CONFIG
    if not wrong or not is_operand(str(path)):
        return None
    try:
        text = read_text(path, "config")
    except CheckpointError:
        return None
    edits = []
    for key, given, right in wrong:
        old = re.compile(rf'"{key}": ?{re.escape(json.dumps(given))}(?=\s*[,}}\n])')
        if len(old.findall(text)) != 1 or not json.dumps(given).isprintable() or len(json.dumps(given)) > 40:
            return None
        new = f'"{key}": {json.dumps(right)}'
        text = old.sub(new, text)
        edits += ["-e", f's/"{key}": \\{{0,1\\}}{sed_pattern(json.dumps(given))}/{new}/']
    return shlex.join(("sed", "-i", *edits, str(path)))
