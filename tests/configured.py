"""The EngineConfig of a core in tests: sizes that suit small models, and the backends that a launch would choose."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from appliance.checkpoint.cache_specs import pool_windows
from appliance.checkpoint.config import read_config
from appliance.checkpoint.drafting import with_head
from appliance.checkpoint.selection import chosen_fields
from appliance.checkpoint.sharding import sharded
from appliance.core_protocol import EngineConfig
from kernels.cast.setting import CAST, cast_summary


def engine_config(
    folder: Path,
    *,
    wanted: Mapping[str, str] | None = None,
    wanted_at: Mapping[str, str] | None = None,
    **values: Any,
) -> EngineConfig:
    """`wanted` are a profile's `backends`, `wanted_at` its `site-backends`; `values` are fields of EngineConfig, of
    which a test says otherwise."""
    defaults: dict[str, Any] = {
        "model_folder": str(folder),
        "device": "cpu",
        "dtype": "float32",
        "max_model_len": 256,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "block_size": 16,
        "num_blocks": 128,
    }
    values = defaults | values
    values.setdefault("kv_cache_dtype", values["dtype"])
    if (folder / "config.json").exists():
        others = pool_windows(read_config(folder).cache_specs, values["max_model_len"])[1:]
        values.setdefault("window_blocks", dict.fromkeys(others, values["num_blocks"]))
        if "backends" not in values:
            values = chosen(folder, wanted, values, wanted_at=wanted_at) | values
    return msgspec.convert(values, EngineConfig)


def chosen(folder: Path, wanted: Mapping[str, str] | None, values: Mapping[str, Any], **where: Any) -> dict[str, Any]:
    """What is chosen (`chosen_fields`) for the device that `values` name; `where` are arguments of `selection_context`
    to choose for another one."""
    device = values.get("device", "cpu")
    described: dict[str, Any] = {
        "device": device,
        "capability": _capability(device),
        "dtype": values["dtype"],
        "kv_cache_dtype": values["kv_cache_dtype"],
        "cast": cast_summary({CAST: values["cast"]}) if values.get("cast") and device != "cpu" else None,
    } | where
    ranks = values.get("ranks", 1)
    whole = read_config(folder)
    config = sharded(with_head(whole) if values.get("drafts") == "mtp" else whole, ranks)
    return chosen_fields(config, described.pop("device"), wanted, workers=ranks, **described)


def _capability(device: str) -> tuple[int, int] | None:
    if device == "cpu":
        return None
    import torch  # most tests of a core's process need none

    return torch.cuda.get_device_capability(device)
