"""A model's two calls: hidden states of every token, and logits of the rows that are asked for."""

from __future__ import annotations

import torch

from appliance.checkpoint.config import read_config
from appliance.checkpoint.safetensors import read_index
from appliance.engine.cache import Caches
from appliance.engine.weights import load_weights
from appliance.models.base import BuildContext
from appliance.models.batch import ForwardBatch
from appliance.models.registry import build
from kernels.binding import bind
from kernels.paged_attention.metadata import AttentionMetadata
from tests.configured import engine_config
from tests.tiny import write_checkpoint

CPU = torch.device("cpu")


def test_logits_of_any_rows_follow_from_the_hidden_states(tmp_path, oracle):
    """Every token's logits come from one forward pass, as embeddings and drafts need them, and agree with the oracle's;
    a choice of rows gives the same numbers, and so does a place to put them in, of the model's dtype or another."""
    folder = write_checkpoint(tmp_path / "model", "qwen3")
    config = read_config(folder)
    prompt = torch.tensor([7, 300, 12, 45, 500, 8])
    with torch.inference_mode():
        model = build(BuildContext(config, bind(engine_config(folder).backends), CPU, torch.float32, 16))
        load_weights(read_index(folder), model.destinations(), lambda done, total: None)
        model.prepare()
        size = len(prompt)
        caches = Caches(config.caches_of_layers, num_blocks=1, block_size=16, dtype=torch.float32, device=CPU)
        positions = torch.arange(size)
        starts = torch.tensor([0, size], dtype=torch.int32)
        table = torch.zeros((1, 1), dtype=torch.int32)
        metadata = AttentionMetadata([size], [size], 0, starts, starts[1:], table, positions)
        hidden = model.forward(
            ForwardBatch(prompt, positions, metadata, torch.zeros(1, dtype=torch.int64)), caches.layers
        )
        logits = model.compute_logits(hidden)
        some = model.compute_logits(hidden[[4, 1]])
        places = [
            torch.full((3, config.vocab_size), torch.nan, dtype=dtype) for dtype in (torch.float32, torch.float64)
        ]
        placed = [model.compute_logits(hidden[[4, 1]], out=place[:2]) for place in places]
        expected = oracle(folder)(prompt[None]).logits[0]
    assert hidden.shape == (size, config.hidden_size)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(some, logits[[4, 1]])
    for place, found in zip(places, placed, strict=True):
        assert found.data_ptr() == place.data_ptr()
        torch.testing.assert_close(place[:2].float(), some)
        assert place[2].isnan().all()
