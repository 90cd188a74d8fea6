"""The same tiny checkpoints in other published forms: as a part of a model that sees, and with fused experts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from tests.tiny import Array, save

_NUMPY = {
    "F32": np.float32, "F16": np.float16, "BF16": np.uint16, "F8_E4M3": np.uint8, "F8_E8M0": np.uint8, "I8": np.int8,
    "I64": np.int64,
}  # fmt: skip


def load(folder: Path) -> dict[str, tuple[str, Array]]:
    """What `save` wrote."""
    data = (folder / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    del header["__metadata__"]
    return {
        name: (
            entry["dtype"],
            np.frombuffer(data[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]],
                          dtype=_NUMPY[entry["dtype"]]).reshape(entry["shape"]),
        )
        for name, entry in header.items()
    }  # fmt: skip


def as_seeing(folder: Path, **outside: Any) -> Path:
    """The same model as the language model of one that takes images: its config and the names of its tensors, if there
    are weights, one level down, with `outside` beside them and tensors of the other parts."""
    config = json.loads((folder / "config.json").read_text())
    architecture = config.pop("architectures")[0].replace("ForCausalLM", "ForConditionalGeneration")
    whole = {
        "architectures": [architecture],
        "model_type": config["model_type"].removesuffix("_text"),
        "text_config": config,
        "vision_config": {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2,
                          "out_hidden_size": config["hidden_size"]},
    }  # fmt: skip
    if "quantization_config" in config:
        whole["quantization_config"] = config.pop("quantization_config")
    (folder / "config.json").write_text(json.dumps(whole | outside, indent=1))
    if (folder / "model.safetensors").exists():
        tensors = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in load(folder).items()}
        rest = ("model.visual.merger.norm.weight", "mtp.fc.weight", "mtp.layers.0.input_layernorm.weight")
        save(tensors | {name: ("F32", np.ones(4, np.float32)) for name in rest}, folder / "model.safetensors")
    return folder


def fuse_experts(folder: Path) -> Path:
    """The experts of each layer in two tensors, as some checkpoints have them."""
    groups: dict[str, list[Array]] = {}
    tensors: dict[str, tuple[str, Array]] = {}
    for name, (dtype, values) in load(folder).items():
        found = re.fullmatch(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight(.*)", name)
        if found is None:
            tensors[name] = dtype, values
            continue
        block, _, part, suffix = found.groups()
        fused = f"{block}.{'down_proj' if part == 'down' else 'gate_up_proj'}{suffix}"
        groups.setdefault(fused, []).append(values)
        tensors[fused] = dtype, values
    for name, parts in groups.items():
        count = len(parts) // (1 if ".down_proj" in name else 2)
        tensors[name] = tensors[name][0], np.stack(parts).reshape(count, -1, parts[0].shape[1])
    save(tensors, folder / "model.safetensors")
    return folder
