"""Latent attention in plain torch, against attention written out by its definition and against transformers."""

from __future__ import annotations

import pytest
import torch
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

from kernels.latent_cache.reference import latent_cache
from kernels.mla_attention import LatentShape
from kernels.mla_attention.cases import Shape, batch
from kernels.mla_attention.reference import mla_attention
from kernels.paged_attention.cases import place
from kernels.rotary_cache.frequencies import cos_sin_table, inverse_frequencies

CPU = torch.device("cpu")
MIXED = [
    ((1,), (9,)),
    ((13,), (13,)),
    ((1, 1, 1, 1), (10, 1, 31, 7)),
    ((1, 1, 5, 17), (9, 30, 5, 23)),
    ((3, 1), (3, 8)),
]
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 8, "beta_fast": 32, "beta_slow": 1,
}  # fmt: skip


def by_definition(query, entries, kv_b, scale):
    """`query` [n, H, nope + rope] for the last n of the tokens of `entries` [L, rank + rope]."""
    heads, rank = kv_b.shape[0], kv_b.shape[-1]
    nope = query.shape[-1] - (entries.shape[-1] - rank)
    out = query.new_empty(query.shape[0], heads, kv_b.shape[1] - nope)
    for i in range(query.shape[0]):
        seen = entries[: len(entries) - query.shape[0] + i + 1]
        for head in range(heads):
            keys = torch.cat((seen[:, :rank] @ kv_b[head, :nope].T, seen[:, rank:]), dim=1)
            values = seen[:, :rank] @ kv_b[head, nope:].T
            out[i, head] = torch.softmax(keys @ query[i, head] * scale, 0) @ values
    return out


@pytest.fixture(params=[1 << 28, 1000], ids=["at once", "in groups"])
def _room(request, monkeypatch):
    """For what is gathered of sequences that decode, and for the heads of a prefill."""
    monkeypatch.setattr("kernels.mla_attention.EXPANDED_BYTES", request.param)
    monkeypatch.setattr("kernels.paged_attention.reference.GATHERED_TOKENS", request.param // 80)


@pytest.mark.usefixtures("_room")
@pytest.mark.parametrize("latent", [LatentShape(16, 8, 4, 12), LatentShape(8, 4, 2, 16)], ids=str)
@pytest.mark.parametrize("heads", [1, 3, 8])
@pytest.mark.parametrize(("queries", "contexts"), MIXED)
def test_agrees_with_the_definition(queries, contexts, heads, latent):
    """Decode, prefill, chunked prefill and mixed batches; slots of no sequence hold NaN, which must not leak in."""
    made = batch(Shape(queries, contexts, heads, latent, block_size=4), torch.float32, CPU)
    out = mla_attention(*made, scale=0.3)
    starts = made.metadata.query_start_loc.tolist()
    for seq, length in enumerate(contexts):
        entries = made.cache[made.metadata.block_tables[seq].long()].flatten(0, 1)[:length]
        rows = slice(starts[seq], starts[seq + 1])
        torch.testing.assert_close(out[rows], by_definition(made.query[rows], entries, made.kv_b, 0.3))


@pytest.mark.parametrize("queries", [(1, 1, 1), (1, 20, 11), (40, 7, 25)], ids=str)
def test_agrees_with_transformers(queries):
    """DeepSeek V3's attention from its projections to the output projection, for the last tokens of three."""
    contexts, rope = (33, 20, 25), 16
    queries = tuple(min(pair) for pair in zip(queries, contexts, strict=True))
    config = DeepseekV3Config(
        hidden_size=64, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=32,
        qk_nope_head_dim=24, qk_rope_head_dim=rope, v_head_dim=20, max_position_embeddings=64, rope_parameters=YARN,
        attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(2)
    theirs = DeepseekV3Attention(config, 0).eval()
    torch.nn.init.normal_(theirs.kv_a_layernorm.weight)
    table = cos_sin_table(*inverse_frequencies(rope, 10000.0, YARN), 64, torch.float32)
    placed = place(queries, contexts, 4, CPU)
    cache = torch.full((placed.num_blocks, 4, 32 + rope), torch.nan)
    metadata, kept, expected = placed.metadata, [], []
    with torch.no_grad():
        for seq, (new, length) in enumerate(zip(queries, contexts, strict=True)):
            hidden = torch.randn(1, length, 64)
            positions = torch.arange(length)
            mask = torch.full((length, length), -torch.inf).triu(1)[None, None]
            angles = DeepseekV3RotaryEmbedding(config)(hidden, positions[None])
            theirs.o_proj = torch.nn.Identity()
            expected.append(theirs(hidden, angles, mask)[0][0, -new:].view(new, 4, 20))
            query = theirs.q_b_proj(theirs.q_a_layernorm(theirs.q_a_proj(hidden))).view(length, 4, 24 + rope)
            latent = theirs.kv_a_proj_with_mqa(hidden)[0]
            slots = metadata.block_tables[seq, positions // 4].long() * 4 + positions % 4
            norm = theirs.kv_a_layernorm
            latent_cache(query, latent, positions, table, norm.weight, norm.variance_epsilon, cache, slots)
            kept.append(query[-new:])
        kv_b = theirs.kv_b_proj.weight.view(4, 24 + 20, 32)
        out = mla_attention(torch.cat(kept), cache, kv_b, metadata, theirs.scaling)
    torch.testing.assert_close(out, torch.cat(expected), atol=2e-5, rtol=2e-5)


def test_a_decode_s_result_is_independent_of_its_neighbours():
    """On the CPU to rounding: sequences are padded to the longest of their group."""
    shape = Shape((1,) * 4, (20, 70, 31, 5), heads=4, latent=LatentShape(16, 8, 4, 12))
    made = batch(shape, torch.float32, CPU)
    together = mla_attention(*made, scale=0.3)
    for seq in range(4):
        alone = place((1,), shape.contexts[seq : seq + 1], 16, CPU).metadata
        alone.block_tables.resize_(1, made.metadata.block_tables.shape[1]).copy_(made.metadata.block_tables[seq])
        out = mla_attention(made.query[seq : seq + 1], made.cache, made.kv_b, alone, 0.3)
        torch.testing.assert_close(out[0], together[seq])
