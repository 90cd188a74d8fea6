"""The scales that a checkpoint gives its FP8 cache are applied when keys and values are written and when they are
read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from appliance.checkpoint.config import read_config
from appliance.checkpoint.layout import optional_tensors
from tests.parity.conftest import distribution, make_engine, prompts
from tests.tiny import write_checkpoint

# Powers of two, so that nothing is rounded: far beyond what e4m3 holds, and far below.
KEY, VALUE = 2.0**12, 2.0**-14
NAMES = {
    "beside the projections": ("k_scale", "v_scale"),
    "of the projections": ("k_proj.k_scale", "v_proj.v_scale"),
    "of the attention": ("attn.k_scale", "attn.v_scale"),
}


def rescaled(folder: Path, target: Path, names: tuple[str, str], shape: tuple[int, ...] = ()) -> Path:
    """The same function with keys and values of another size, and the scales that undo it."""
    shutil.copytree(folder, target)
    tensors: dict[str, Any] = load_file(folder / "model.safetensors")
    for layer in range(2):
        at = f"model.layers.{layer}.self_attn."
        for name, factor in (("q", 1 / KEY), ("k", KEY), ("v", VALUE), ("o", 1 / VALUE)):
            tensors[f"{at}{name}_proj.weight"] *= factor
        for name, scale in zip(names, (KEY, VALUE), strict=True):
            tensors[at + name] = torch.full(shape, scale)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("scales") / "plain")


@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_scales_of_the_checkpoint_are_applied(plain, tmp_path, names, shape):
    scaled = rescaled(plain, tmp_path / "scaled", names, shape)
    first, second = (make_engine(folder, kv_cache_dtype="float8_e4m3fn") for folder in (plain, scaled))
    for prompt in prompts(4).values():
        torch.testing.assert_close(distribution(second, prompt), distribution(first, prompt), atol=1e-4, rtol=0)


def test_a_cache_in_full_needs_no_scales(plain, tmp_path):
    scaled = rescaled(plain, tmp_path / "scaled", ("k_scale", "v_scale"))
    first, second = (make_engine(folder) for folder in (plain, scaled))
    for prompt in prompts(2).values():
        torch.testing.assert_close(distribution(second, prompt), distribution(first, prompt), atol=1e-4, rtol=0)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_not_a_positive_number_is_refused_by_name(plain, tmp_path, scale):
    scaled = rescaled(plain, tmp_path / "scaled", ("k_scale", "v_scale"))
    tensors = load_file(scaled / "model.safetensors")
    tensors["model.layers.1.self_attn.v_scale"] = torch.tensor(scale)
    save_file(tensors, scaled / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"model\.layers\.1\.self_attn\.v_scale"):
        make_engine(scaled, kv_cache_dtype="float8_e4m3fn")


def test_preflight_knows_the_names(plain):
    known = optional_tensors(read_config(plain))
    assert {f"model.layers.1.self_attn.{name}" for names in NAMES.values() for name in names} < known
