"""The engine builds all that preflight lets through, and each model allocates what its family's description says."""

from __future__ import annotations

import pytest
import torch

from appliance.checkpoint.config import read_config
from appliance.checkpoint.layout import expected_tensors
from appliance.models.base import BuildContext
from appliance.models.registry import build
from kernels.binding import bind
from kernels.catalogue import OPS
from kernels.selection import Context, chosen_names, explain
from tests.tiny import FAMILIES, write_checkpoint


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [False, True])
def test_a_model_takes_exactly_the_tensors_that_preflight_expects(tmp_path, family, tied):
    config = read_config(write_checkpoint(tmp_path / "model", family, tie_word_embeddings=tied))
    kernels = bind(chosen_names(explain(OPS, Context("cpu", num_experts=8))))
    model = build(BuildContext(config, kernels, torch.device("cpu"), torch.float32, max_model_len=64))
    allocated = {name: tuple(tensor.shape) for name, tensor in model.destinations().items()}
    assert allocated == {name: tensor.shape for name, tensor in expected_tensors(config).items()}
