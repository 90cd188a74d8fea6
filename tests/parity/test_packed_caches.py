"""DeepSeek V4 with packed entries, and keys and queries of the indexer in MXFP4, against DeepSeek's own inference code,
which rounds them in the same way."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from appliance.checkpoint.config import read_config
from appliance.checkpoint.index_keys import with_index_keys
from appliance.checkpoint.safetensors import read_index
from appliance.engine.cache import Caches
from appliance.engine.weights import load_weights
from appliance.models.base import BuildContext
from appliance.models.batch import ForwardBatch
from appliance.models.registry import build
from kernels.binding import bind
from kernels.index_cache.reference import hadamard
from kernels.paged_attention.metadata import AttentionMetadata
from tests.configured import engine_config
from tests.tiny_deepseek_v4 import CONFIG, write_deepseek_v4

ORACLE = Path(__file__).parents[3] / "shared/oracles/deepseek_v4_reference"
CPU = torch.device("cpu")
LENGTH = 300
SIZES: dict[str, Any] = {
    "head_dim": 128, "qk_rope_head_dim": 64, "index_head_dim": 128, "index_topk": 128, "vocab_size": 97,
    "compress_ratios": [0, 4, 128, 4, 0, 0],
}  # fmt: skip

pytestmark = pytest.mark.skipif(not ORACLE.is_dir(), reason="other people's code is not part of the project")


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, with what turns of an entry rounded to 16 bits, as where everything is."""
    monkeypatch.syspath_prepend(str(ORACLE))
    module: Any = importlib.import_module("model_dsv4")
    monkeypatch.setattr(module, "rotate_activation", hadamard)
    turn = module.turned_exactly = module.apply_rotary_emb

    def rounded(x: torch.Tensor, *angles: Any) -> torch.Tensor:
        turned: torch.Tensor = turn(x, *angles)
        return turned.copy_(turned.bfloat16()) if x.ndim == 3 else turned

    monkeypatch.setattr(module, "apply_rotary_emb", rounded)
    yield module
    for name in ("model_dsv4", "kernel"):
        sys.modules.pop(name, None)


def expected(module: Any, folder: Path, config: dict[str, Any], ids: torch.Tensor) -> torch.Tensor:
    """Logits behind the last 50 tokens, which are decoded one by one."""
    same = {"n_heads": "num_attention_heads", "n_layers": "num_hidden_layers", "dim": "hidden_size",
            "moe_inter_dim": "moe_intermediate_size", "n_hash_layers": "num_hash_layers",
            "n_activated_experts": "num_experts_per_tok", "route_scale": "routed_scaling_factor",
            "rope_head_dim": "qk_rope_head_dim", "window_size": "sliding_window"}  # fmt: skip
    named = ("vocab_size", "n_routed_experts", "swiglu_limit", "q_lora_rank", "head_dim", "o_groups", "o_lora_rank",
             "compress_rope_theta", "index_n_heads", "index_head_dim", "index_topk", "hc_mult")  # fmt: skip
    arguments = {name: config[name] for name in named} | {name: config[key] for name, key in same.items()}
    model = module.Transformer(
        module.ModelArgs(
            max_batch_size=1, max_seq_len=512, dtype="bf16", scale_dtype="fp32", n_mtp_layers=0,
            compress_ratios=tuple(config["compress_ratios"]), original_seq_len=65536, rope_factor=16, **arguments,
        )
    )  # fmt: skip
    model.float()
    tensors = {name: tensor for name, tensor in load_file(folder / "model.safetensors").items() if "mtp" not in name}
    model.load_state_dict(tensors)
    found = [model(ids[None, : LENGTH - 50], 0)]
    found += [model(ids[None, i : i + 1], i) for i in range(LENGTH - 50, LENGTH)]
    return torch.cat(found)


@torch.inference_mode()
def found(
    folder: Path,
    ids: torch.Tensor,
    cut: int,
    dtype: torch.dtype,
    keys: str = "auto",
    chosen: list[torch.Tensor] | None = None,
) -> torch.Tensor:
    """The same, computed in float32 in chunks of `cut` tokens, with caches of `dtype`, keys as `keys` says; `chosen`
    gets the slots that each call of an indexer chose."""
    config = with_index_keys(read_config(folder), keys)
    kernels = bind(engine_config(folder).backends)
    if chosen is not None:
        kernels = replace(kernels, indexer=noting(kernels.indexer, chosen))
    model = build(BuildContext(config, kernels, CPU, torch.float32, 512))
    load_weights(read_index(folder), model.destinations(), lambda done, total: None)
    model.prepare()
    caches = Caches(
        config.caches_of_layers, num_blocks=4, block_size=128, dtype=dtype, device=CPU, state_rows=2, state_dtype=dtype
    )
    table, slots, hidden = torch.tensor([[2, 0, 3]], dtype=torch.int32), torch.ones(1, dtype=torch.int64), []
    for start in range(0, LENGTH, cut):
        end = min(start + cut, LENGTH)
        positions, starts = torch.arange(start, end), torch.tensor([0, end - start], dtype=torch.int32)
        lengths = torch.tensor([end], dtype=torch.int32)
        metadata = AttentionMetadata([end - start], [end], 0, starts, lengths, table, positions)
        hidden.append(model.forward(ForwardBatch(ids[start:end], positions, metadata, slots), caches.layers))
    return model.compute_logits(torch.cat(hidden)[LENGTH - 51 :])


def noting(indexer: Any, chosen: list[torch.Tensor]) -> Any:
    def call(*arguments: Any) -> Any:
        result = indexer(*arguments)
        chosen.append(result.slots)
        return result

    return call


def test_an_indexer_chooses_alike(tmp_path: Path, reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first layer, 24 of up to 62 entries, by keys and queries that both round to four bits. Keys in 8 bits
    choose otherwise."""
    torch.manual_seed(4)
    ids = torch.randint(0, 97, (LENGTH,))
    sizes = SIZES | {"index_topk": 24, "compress_ratios": [4, 128, 4, 0, 0, 0]}
    folder = write_deepseek_v4(tmp_path / "model", **sizes)
    monkeypatch.setattr(reference, "apply_rotary_emb", reference.turned_exactly)
    theirs: list[torch.Tensor] = []
    forward = reference.Indexer.forward

    def noted(self: Any, x: Any, latent: Any, start: int, offset: int) -> torch.Tensor:
        result: torch.Tensor = forward(self, x, latent, start, offset)
        theirs.append(result[0] - offset)
        return result

    monkeypatch.setattr(reference.Indexer, "forward", noted)
    expected(reference, folder, CONFIG | sizes, ids)
    shares = {}
    for keys in ("auto", "fp8"):
        ours: list[torch.Tensor] = []
        found(folder, ids, LENGTH, torch.bfloat16, keys, ours)
        block_of = torch.tensor([1, -1, 0, 2])  # as of the table of blocks, of 32 entries each
        equal = total = 0
        for row in range(4 * 24 + 3, LENGTH - 50):  # which do not see all that there is
            entries = {int(block_of[slot // 32]) * 32 + slot % 32 for slot in ours[0][row].tolist()}
            equal += len(entries & set(theirs[0][row].tolist()))
            total += 24
        shares[keys] = equal / total
    assert shares["auto"] > 0.999 > 0.97 > shares["fp8"]


def test_logits_agree(tmp_path: Path, reference: Any) -> None:
    """Rounding takes the last bit of a sum for another number here and there, so that they agree less than in float32;
    without rounding they are far from it."""
    torch.manual_seed(4)
    ids = torch.randint(0, 97, (LENGTH,))
    folder = write_deepseek_v4(tmp_path / "model", **SIZES)
    wanted = expected(reference, folder, CONFIG | SIZES, ids)
    assert wanted.abs().max() > 3
    for cut in (7, 130, LENGTH):
        torch.testing.assert_close(found(folder, ids, cut, torch.bfloat16), wanted, atol=5e-3, rtol=0)
    assert (found(folder, ids, LENGTH, torch.float32) - wanted).abs().max() > 0.1
