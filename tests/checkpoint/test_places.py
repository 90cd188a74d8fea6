"""Each place of a model is judged by itself: by its own shape, format and layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from appliance.checkpoint.config import read_config
from appliance.checkpoint.drafting import with_head
from appliance.checkpoint.model_config import ModelConfig
from appliance.checkpoint.selection import selection_context
from appliance.checkpoint.sharding import sharded
from appliance.checkpoint.sites import places, sites
from appliance.models.base import BuildContext
from appliance.models.collectives import Alone
from appliance.models.registry import build
from kernels.binding import bind
from kernels.catalogue import OPS
from kernels.context import Context
from kernels.selection import Explanation, explain, names_by_place
from tests.tiny import FAMILIES, FP8, aligned, write_checkpoint
from tests.tiny_deepseek_v4 import QUANTISED, write_deepseek_v4

BOTH = (False, True)


def on_hopper(config: ModelConfig, **changes: Any) -> Context:
    described: dict[str, Any] = {
        "device": "cuda", "capability": (9, 0), "dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "cuda_graphs": True,
        "libraries": {},
    }  # fmt: skip
    return selection_context(config, **(described | changes))


def chosen(config: ModelConfig, **changes: Any) -> dict[str, str]:
    context = on_hopper(config, **changes)
    return names_by_place(explain(OPS, context, None, places(config, context)))


def written(folder: Path, family: str, *, fp8: bool, **changes: Any) -> ModelConfig:
    if family == "deepseek_v4":
        return read_config(write_deepseek_v4(folder, **QUANTISED if fp8 else {}))
    # Gates have fewer rows than a block.
    kept = {"quantization_config": FP8 | {"modules_to_not_convert": ["in_proj_ba", "in_proj_a", "in_proj_b"]}}
    config = aligned(family) | changes | (kept if fp8 else {})
    return read_config(write_checkpoint(folder, family, dtype="bfloat16", **config))


def test_a_product_in_another_format_gets_another_backend(tmp_path: Path) -> None:
    """The weights of an indexer's heads in float32, beside others in 16 bits and in FP8."""
    found = chosen(written(tmp_path / "m", "deepseek_v32", fp8=True))
    assert found["linear@64x192:float32"] == "torch"
    assert {name for at, name in found.items() if at.startswith("fp8_linear@")} == {"triton"}
    assert {name for at, name in found.items() if at.startswith("linear@") and ":" not in at} == {"triton"}


def test_a_width_that_has_no_kernel_leaves_the_others_theirs(tmp_path: Path) -> None:
    """Shared experts beside dense layers, and a product of an odd row."""
    config = written(tmp_path / "m", "deepseek_v3", fp8=False, moe_intermediate_size=100)
    found = chosen(config)
    dense = config.intermediate_size
    assert found["gated_activation@100"] == "torch"
    assert found[f"gated_activation@{dense}"] == "triton"
    assert found["linear@192x100"] == "torch"
    assert found[f"linear@192x{dense}"] == "triton"


def test_layers_with_windows_are_another_place(tmp_path: Path) -> None:
    config = written(
        tmp_path / "m", "qwen2", fp8=False, use_sliding_window=True, sliding_window=64, max_window_layers=1,
        num_hidden_layers=3,
    )  # fmt: skip
    by_key = {site.key: site for site in sites(config, dtype="bfloat16", cache_dtype="bfloat16", keep_fp8=False)}
    full, windowed = (site for key, site in by_key.items() if key.startswith("paged_attention@"))
    assert (full.layers, windowed.layers) == ((0,), (1, 2))
    assert windowed.key == f"{full.key}x64"
    contexts = {place.key: place.context for place in places(config, on_hopper(config))}
    assert not contexts[full.key].sliding_window
    assert contexts[windowed.key].sliding_window


@pytest.mark.parametrize("family", [*FAMILIES, "deepseek_v4"])
@pytest.mark.parametrize("fp8", BOTH, ids=["bfloat16", "fp8"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_model_finds_all_of_its_places(tmp_path: Path, family: str, fp8: bool, ranks: int) -> None:
    """As a GPU keeps its weights, and each of two ranks; a place that is not among those planned is an error."""
    config = sharded(written(tmp_path / "m", family, fp8=fp8), ranks)
    context = on_hopper(config)
    found = places(config, context)
    assert len({place.key for place in found}) == len(found)
    built(config, context.fp8_blocks is not None)


def test_a_layer_that_drafts_has_places_of_its_own(tmp_path: Path) -> None:
    config = written(tmp_path / "m", "deepseek_v3", fp8=False, num_nextn_predict_layers=1)
    built(with_head(config), keep_fp8=False)


def built(config: ModelConfig, keep_fp8: bool) -> None:
    """With plain torch at each place that a plan names."""
    described = places(config, on_hopper(config))
    ops = dict.fromkeys((place.op for place in described), "torch")
    kernels = bind(ops, places={place.key: "torch" for place in described})
    group = Alone()
    group.count = config.ranks
    build(BuildContext(config, kernels, torch.device("meta"), torch.bfloat16, 256, keep_fp8, group))


def test_every_place_of_every_family_is_served(tmp_path: Path) -> None:
    for number, family in enumerate((*FAMILIES, "deepseek_v4")):
        for fp8 in BOTH:
            config = written(tmp_path / f"{number}{fp8}", family, fp8=fp8)
            context = on_hopper(config)
            explained = explain(OPS, context, None, places(config, context))
            assert not [found.op.name for found in explained if found.refusal]
            assert all(map(_placed, explained)), family


def _placed(found: Explanation) -> bool:
    return bool(found.places) and found.chosen is not None
