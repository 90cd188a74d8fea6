"""A cast for one model holds every kernel that the model launches: of each family, with a head for drafts and without,
what its ops launch is what they declared for it."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from appliance.checkpoint.config import read_config
from appliance.checkpoint.drafting import with_head
from appliance.checkpoint.selection import selection_context
from appliance.engine.cache import Caches
from appliance.models.base import BuildContext
from appliance.models.batch import ForwardBatch
from appliance.models.registry import build
from kernels.binding import bind
from kernels.catalogue import OPS
from kernels.launch import launching_for
from kernels.selection import chosen_names, explain
from tests.gpu.bench.deepseek_v4 import FLASH
from tests.kernels.test_workspace import FACES, FEW_LAYERS, META, MODELS, geometry
from tests.tiny import BASE, FAMILIES, block_fp8

# A chunk of a long prompt, decodes, and both.
STEPS = (((2048,), (32768,)), ((1,) * 8, (2000,) * 8), ((1,) * 8 + (100,), (2000,) * 8 + (300,)))
HEADS = {"qwen3_5": "mtp_num_hidden_layers", "qwen3_next": "num_nextn_predict_layers"}


def described(family: str, *, fp8: bool, heads: int) -> dict[str, Any]:
    layers = {HEADS.get(family, "num_nextn_predict_layers"): heads}
    return BASE | FAMILIES[family] | MODELS[family] | FEW_LAYERS | layers | (
        {"quantization_config": block_fp8(family)} if fp8 else {}
    )  # fmt: skip


def declared_for(config_json: dict[str, Any], folder: Path, arch: int, fp8: bool, launched: set[str]) -> set[str]:
    """What ops declare for the model, whose steps leave in `launched` what they launch."""
    (folder / "config.json").write_text(json.dumps(config_json))
    config = read_config(folder)
    has_head = bool(config_json.get("num_nextn_predict_layers") or config_json.get("mtp_num_hidden_layers"))
    config = with_head(config) if has_head else config
    context = selection_context(
        config, device="cuda", capability=divmod(arch, 10), dtype="bfloat16", kv_cache_dtype="bfloat16",
        cuda_graphs=False, libraries={"triton": "3"},
    )  # fmt: skip
    found = explain(OPS, context)
    model = build(BuildContext(config, bind(chosen_names(found)), META, torch.bfloat16, 32768, fp8))
    size = 256 if config.compressed_attention else 16
    caches = Caches(
        config.caches_of_layers, num_blocks=65536 // size, block_size=size, dtype=torch.bfloat16, device=META,
        state_rows=257, state_dtype=torch.bfloat16,
    )  # fmt: skip
    launched.clear()
    for query_lens, context_lens in STEPS:
        ids, rows = (torch.empty(count, dtype=torch.int64, device=META) for count in (sum(query_lens), len(query_lens)))
        step = ForwardBatch(ids, ids, geometry(query_lens, context_lens), torch.arange(len(query_lens)))
        with torch.inference_mode(), launching_for(arch):
            hidden = model.forward(step, caches.layers)
            model.compute_logits(hidden[rows])
            if model.drafter is not None:
                streams = step.carried.for_head
                model.drafter.forward(step, hidden if streams is None else streams, caches.layers[-1])
    return {name for each in found for name in each.needs.variants}


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the variants that are launched, none of which is."""
    names: set[str] = set()
    for face in FACES:
        module = importlib.import_module(f"kernels.{face}")
        monkeypatch.setattr(module, "launch", lambda _kernel, variant, *_: names.add(variant.name))
    return names


@pytest.mark.parametrize("heads", [0, 1])
@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("family", MODELS)
def test_a_model_launches_what_is_declared_for_it(
    family: str, arch: int, fp8: bool, heads: int, tmp_path: Path, launched: set[str]
) -> None:
    if heads and family in ("llama", "mixtral", "qwen3_moe", "minimax_m2"):
        pytest.skip("has no head for drafts")
    declared = declared_for(described(family, fp8=fp8, heads=heads), tmp_path, arch, fp8, launched)
    assert launched
    assert sorted(launched - declared) == []


@pytest.mark.parametrize("heads", [0, 1])
@pytest.mark.parametrize("experts", ["fp8", "fp4"])
@pytest.mark.parametrize("arch", [80, 90, 100, 120])
def test_deepseek_v4_launches_what_is_declared_for_it(
    arch: int, experts: str, heads: int, tmp_path: Path, launched: set[str]
) -> None:
    ratios = [0, 4, 128, *[0] * heads]
    layers = {"num_hidden_layers": 3, "compress_ratios": ratios, "num_nextn_predict_layers": heads}
    declared = declared_for(FLASH | layers | {"expert_dtype": experts}, tmp_path, arch, True, launched)
    assert launched
    assert sorted(launched - declared) == []
