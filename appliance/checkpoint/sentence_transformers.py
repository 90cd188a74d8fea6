"""What `modules.json` and its neighbours say of an embedding model: how it pools, and how its tensors are named.

The formats are sentence-transformers': a list of modules, each with its class and its folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.families.decoder import EMBEDDING, HEAD
from appliance.checkpoint.json_file import read_object, read_text
from appliance.checkpoint.model_config import ModelConfig
from appliance.checkpoint.safetensors import read_index
from appliance.core_protocol import Pooling

MODULES: Final = "modules.json"
# Without them the embedding is the pooled state, whose direction is the same.
IGNORED: Final = ("Transformer", "Normalize")
POOLINGS: Final[dict[str, Pooling]] = {
    "pooling_mode_lasttoken": "last",
    "lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "mean": "mean",
}


def read_pooling(folder: Path) -> Pooling:
    """The last token's state where nothing else is said. Raises CheckpointError for what the engine does not do."""
    pooling: Pooling = "last"
    for module in _modules(folder):
        kind = str(module.get("type")).rpartition(".")[2]
        if kind == "Pooling":
            pooling = _pooling(folder / str(module.get("path")) / "config.json")
        elif kind not in IGNORED:
            raise _unsupported(folder / MODULES, "type", module.get("type"))
    return pooling


def with_names_of(folder: Path, config: ModelConfig) -> ModelConfig:
    """Such models are often stored without their head, and their tensors then without the prefix. Such a head is never
    used: the embedding table stands in its place. Raises CheckpointError."""
    if not (folder / MODULES).exists():
        return config
    names = read_index(folder).tensors
    prefix = "" if EMBEDDING in names else config.prefix
    return structs.replace(config, prefix=prefix, tie_word_embeddings=config.tie_word_embeddings or HEAD not in names)


def _modules(folder: Path) -> list[dict[str, Any]]:
    path = folder / MODULES
    if not path.exists():
        return []
    try:
        modules = json.loads(read_text(path, "modules"))
    except (ValueError, RecursionError):
        modules = None
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise _unsupported(path, None, None)
    return modules


def _pooling(path: Path) -> Pooling:
    content = read_object(path, "pooling-config")
    chosen = [name for name, value in content.items() if name.startswith("pooling_mode_") and value is True]
    if isinstance(mode := content.get("pooling_mode"), str):
        chosen.append(mode)
    if len(chosen) != 1 or chosen[0] not in POOLINGS:
        raise _unsupported(path, "pooling_mode", chosen)
    return POOLINGS[chosen[0]]


def _unsupported(path: Path, field: str | None, value: Any) -> CheckpointError:
    return CheckpointError(
        "pooling-unsupported",
        f"The native engine does not support how {path.name} makes embeddings.",
        file=path,
        field=field,
        value=value,
        remedy="Choose a model that pools by its last token or the mean, or use `engine: vllm`.",
    )
