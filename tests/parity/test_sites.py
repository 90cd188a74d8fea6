"""Where `ingot explain` says that a model calls its ops is where it calls them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from appliance.checkpoint.config import read_config
from appliance.checkpoint.drafting import with_head
from appliance.checkpoint.sites import Site, sites
from appliance.engine import engine as engine_module
from appliance.models.layers.decoder_layer import DecoderLayer
from appliance.models.layers.hyper_connected import HyperConnectedLayer
from kernels.binding import Kernels, bind
from kernels.named import load
from tests.parity.conftest import generate, make_engine, prompts, tokens
from tests.tiny import FAMILIES, FP8, aligned, write_checkpoint
from tests.tiny_deepseek_v4 import QUANTISED, write_deepseek_v4

Called = set[tuple[str, Any]]

# Each layer takes one of several ways, as many tokens as there are.
ONE_OF = {"mla_attention", "sparse_mla"}


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Called:
    """The ops that engines call from now on, each with the layer that does."""
    found: Called = set()
    inside: list[Any] = [None]

    def within(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def layer(self: Any, *arguments: Any) -> Tensor:
            inside[0] = self
            result = call(self, *arguments)
            inside[0] = None
            return result

        return layer

    def heard(at: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def spy(*arguments: Any, **named: Any) -> Any:
            found.add((at, inside[0]))
            return function(*arguments, **named)

        return spy

    def bound(backends: dict[str, str], places: dict[str, str]) -> Kernels:
        kernels = bind(backends, places=places)
        return dataclasses.replace(
            kernels,
            **{op: heard(op, getattr(kernels, op)) for op in backends},
            places={at: each._replace(call=heard(at, each.call)) for at, each in kernels.places.items()},
        )

    for kind in (DecoderLayer, HyperConnectedLayer):
        monkeypatch.setattr(kind, "__call__", within(kind.__call__))
    monkeypatch.setattr(engine_module, "bind", bound)
    return found


@pytest.mark.parametrize("family", [*FAMILIES, "deepseek_v4"])
def test_each_layer_calls_the_ops_that_it_is_said_to(tmp_path: Path, called: Called, family: str) -> None:
    if family == "deepseek_v4":
        folder = write_deepseek_v4(tmp_path / "model")
        engine = make_engine(folder, num_snapshots=8, block_size=128, max_model_len=512, num_blocks=24)
    else:
        folder = write_checkpoint(tmp_path / "model", family, seed=3, num_hidden_layers=4, **changes(family))
        engine = make_engine(folder, num_snapshots=8)
    generate(engine, prompts(4), max_tokens=4)
    model: Any = engine._runner._model
    places = {layer: number for number, layer in enumerate(model.layers)}
    said = sites_of(folder)
    of_op = {op: [site.key for site in said if site.op == op] for op in {site.op for site in said}}
    assert {op for op, _ in called if "@" not in op} <= {op for op, keys in of_op.items() if len(keys) == 1}
    found = {(at if "@" in at else of_op[at][0], layer) for at, layer in called}
    within = {(at, places[layer]) for at, layer in found if layer is not None}
    expected = {(site.key, layer) for site in said for layer in site.layers}
    assert within <= expected
    assert {at.partition("@")[0] for at, _ in expected - within} <= ONE_OF
    outside, once = {at for at, layer in found if layer is None}, {site.key for site in said if not site.layers}
    assert once <= outside
    assert {at.partition("@")[0] for at in outside - once} == {"rms_norm"}  # the last one, as in the layers


def test_a_product_is_computed_by_what_its_place_was_given(tmp_path: Path) -> None:
    """The head by torch, by the profile's wish, and all others by oneDNN; the tokens are the same."""
    folder = write_checkpoint(tmp_path / "model", "llama", seed=3)
    usual, wished = make_engine(folder), make_engine(folder, wanted_at={"linear@512x64": "torch"})
    model: Any = wished._runner._model
    assert model._multiply_head.call is load("kernels.linear.reference:linear")
    assert model.layers[0].mixer.qkv._product.call is load("kernels.linear.onednn:linear")
    assert wished.loaded.selection["linear"] == "onednn"
    assert wished.loaded.selection["linear@512x64"] == "torch"
    written = [generate(engine, prompts(4), max_tokens=4) for engine in (usual, wished)]
    assert [*map(tokens, written[0].values())] == [*map(tokens, written[1].values())]


def changes(family: str) -> dict[str, Any]:
    """Layers of all kinds among four."""
    if family == "glm_moe_dsa":
        return {"indexer_types": ["full", "shared", "full", "shared"]}
    if family == "qwen3_moe":
        return {"mlp_only_layers": [1]}
    return {}


def sites_of(folder: Path) -> tuple[Site, ...]:
    return sites(read_config(folder), dtype="float32", cache_dtype="float32", keep_fp8=False)


def test_shapes_and_formats_differ_by_layer(tmp_path: Path) -> None:
    """A model with both kinds of layer, and experts in FP8 behind one dense layer."""
    hybrid = sites_of(write_checkpoint(tmp_path / "hybrid", "qwen3_next", num_hidden_layers=4))
    (delta,) = (site for site in hybrid if site.op == "delta_rule")
    (attention,) = (site for site in hybrid if site.op == "paged_attention")
    assert (delta.shape, delta.dtype, delta.layers) == ("2 heads of 16, 4 of 24", "float32", (0, 2))
    assert (attention.shape, attention.layers) == ("4 heads of 32, 2 of keys and values", (1, 3))
    config = aligned("deepseek_v3") | {"quantization_config": FP8}
    latent = write_checkpoint(tmp_path / "latent", "deepseek_v3", **config)
    found = sites(read_config(latent), dtype="bfloat16", cache_dtype="bfloat16", keep_fp8=True)
    (experts,) = (site for site in found if site.op == "fused_moe")
    assert (experts.dtype, experts.layers) == ("float8_e4m3fn", (1, 2))
    assert {site.layers for site in found if site.op == "gated_activation"} == {(0,), (1, 2)}
    by_format = {(site.dtype, site.layers) for site in found if site.op in ("linear", "fp8_linear")}
    assert ("float8_e4m3fn", (0, 1, 2)) in by_format
    assert ("bfloat16", ()) in by_format  # the head
    assert not any(site.shape == f"{4 * (16 + 16)} x 32" for site in found)  # what attention takes apart is part of it


@pytest.mark.parametrize(("experts", "dtype"), [("fp4", "mxfp4"), ("fp8", "float8_e4m3fn")])
def test_experts_are_in_the_format_that_they_are_kept_in(tmp_path: Path, experts: str, dtype: str) -> None:
    config = read_config(write_deepseek_v4(tmp_path / "model", **QUANTISED, expert_dtype=experts))
    found = sites(config, dtype="bfloat16", cache_dtype="bfloat16", keep_fp8=True)
    assert {site.dtype for site in found if site.op == "fused_moe"} == {dtype}


def test_compressed_entries_and_the_groups_of_heads(tmp_path: Path) -> None:
    found = sites_of(write_deepseek_v4(tmp_path / "model"))
    compressors = {(site.shape, site.layers) for site in found if site.op == "compressor"}
    assert compressors == {("32 of 4 tokens", (1, 3)), ("32 of 128 tokens", (2,))}
    (grouped,) = (site for site in found if site.op == "grouped_linear")
    assert (grouped.shape, grouped.layers) == ("2 x 16 x 64", (0, 1, 2, 3, 4))
    assert not any(site.op == "linear" and site.shape == "32 x 64" for site in found if site.dtype != "float32")
    attending = [site.layers for site in found if site.op == "compressed_attention"]
    assert attending == [(0, 4), (1, 3), (2,)]


def test_the_layer_that_drafts_is_one_more(tmp_path: Path) -> None:
    """With the projection of its two inputs."""
    config = read_config(write_checkpoint(tmp_path / "model", "deepseek_v3", num_nextn_predict_layers=1))
    drafting = with_head(config)
    assert drafting.num_hidden_layers == config.num_hidden_layers + 1
    described: dict[str, Any] = {"dtype": "float32", "cache_dtype": "float32", "keep_fp8": False}
    hidden, head = config.hidden_size, config.num_hidden_layers
    (projection,) = (
        s for s in sites(drafting, **described) if s.shape == f"{hidden} x {2 * hidden}" and s.op == "linear"
    )
    assert projection.layers[-1] == head
    (attention,) = (site for site in sites(drafting, **described) if site.op == "mla_attention")
    assert attention.layers == tuple(range(head + 1))
    assert all(head not in site.layers for site in sites(config, **described))
