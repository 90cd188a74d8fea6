"""What vLLM will take, for the kinds of attention of published models; unknown for the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from appliance.checkpoint.fields import Fields
from appliance.hardware import Host, Inventory
from appliance.hardware.device import select_device
from appliance.hardware.known import known_gpu
from appliance.profile.document import apply_patch, load
from appliance.vllm.attention_kinds import cache_shape
from appliance.vllm.footprint import graph_sizes
from appliance.vllm.memory import vllm_memory
from tests.tiny import write_checkpoint

GIB = 1 << 30


def shape(item: int = 2, **config: Any) -> Any:
    return cache_shape(Fields(Path("config.json"), config), item)


DEEPSEEK_V3 = {"num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "hidden_size": 7168,
               "kv_lora_rank": 512, "qk_rope_head_dim": 64}  # fmt: skip
GEMMA_3_27B = {"num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128,
               "hidden_size": 5376, "sliding_window": 1024, "sliding_window_pattern": 6}  # fmt: skip
QWEN3_NEXT = {"num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
              "hidden_size": 2048, "full_attention_interval": 4, "linear_num_key_heads": 16,
              "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
              "linear_conv_kernel_dim": 4}  # fmt: skip


def test_a_latent_is_one_row_for_all_heads() -> None:
    """DeepSeek V3: 576 numbers a layer, 70 KB a token in bfloat16, as its authors say."""
    assert shape(**DEEPSEEK_V3).bytes_per_token == 61 * 576 * 2 == 70272
    with_indexer = shape(**DEEPSEEK_V3, index_topk=2048, index_head_dim=128)
    assert with_indexer.bytes_per_token - 70272 == 61 * 132


def test_layers_with_a_window_stop_growing() -> None:
    """Gemma 3: 52 of 62 layers see 1024 tokens; while it is computed, a chunk more is kept."""
    found = shape(**GEMMA_3_27B)
    one = 2 * 16 * 128 * 2
    assert (found.bytes_per_token, found.windows[0].bytes_per_token) == (10 * one, 52 * one)
    short, long = (found.sequence_bytes(length, 16, 2048) for length in (1024, 131072))
    assert short == 1024 * 62 * one
    assert long == (131072 * 10 + 3072 * 52) * one


def test_states_of_linear_attention_are_as_large_for_any_length() -> None:
    """Qwen3-Next: 12 of 48 layers keep keys and values; the rest a matrix for each of 32 heads."""
    found = shape(**QWEN3_NEXT)
    assert found.bytes_per_token == 12 * 2 * 2 * 256 * 2
    state = 32 * 128 * 128 * 4 + (2 * 16 * 128 + 32 * 128) * 3 * 2
    assert found.per_sequence == 36 * state
    assert found.sequence_bytes(16, 16, 0) == 36 * state + 16 * found.bytes_per_token


@pytest.mark.parametrize(
    "unread",
    [{"layer_types": ["chunked_attention"] * 61}, {"attn_type_list": [0, 1]}, {"layers_block_type": ["rwkv"] * 61},
     {"hybrid_override_pattern": "M*?"}, {"is_encoder_decoder": True}, {"ssm_state_size": 16}],
)  # fmt: skip
def test_of_other_kinds_nothing_is_reported(unread: dict[str, Any]) -> None:
    assert shape(**DEEPSEEK_V3, **unread) is None


def test_vllm_takes_its_whole_share(tmp_path: Path) -> None:
    """What weights, step and graphs leave of it is the cache; more sequences run where it does not hold all at once."""
    folder = write_checkpoint(tmp_path / "m", max_position_embeddings=65536, num_hidden_layers=8)
    host = Host(cores=8, memory_bytes=64 * GIB, memory_available_bytes=64 * GIB)
    gpu = known_gpu("L4").as_gpu()
    inventory = Inventory(gpus=(gpu,), driver_version=None, cuda_version=None, host=host, problem=None)

    def plan(**changes: Any) -> Any:
        profile = load(apply_patch({"name": "x", "model": {"path": "m"}, "engine": "vllm"}, changes))
        return vllm_memory(profile, folder, select_device("auto", inventory, {}), inventory)

    found = plan()
    assert found.estimated
    assert found.available_bytes == int(24 * GIB * 0.9)
    assert found.available_bytes - found.needed_bytes < found.bytes_per_token * found.block_size
    assert found.graph_bytes > 0
    assert plan(**{"enforce-eager": True}).graph_bytes == 0
    half = plan(**{"tensor-parallel-size": 2})
    assert half.bytes_per_token * 2 == found.bytes_per_token
    assert half.weight_bytes * 2 == found.weight_bytes
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"layer_types": ["unheard_of"] * 8}))
    assert plan() is None


def test_what_spreads_the_weights_is_counted(tmp_path: Path) -> None:
    """Stages hold some of the layers each, and what is offloaded is the host's; of what vLLM quantises itself, or
    spreads by experts, only vLLM can tell."""
    folder = write_checkpoint(tmp_path / "m", num_hidden_layers=8)
    gpu = known_gpu("L4").as_gpu()
    host = Host(cores=8, memory_bytes=64 * GIB, memory_available_bytes=64 * GIB)
    inventory = Inventory(gpus=(gpu,), driver_version=None, cuda_version=None, host=host, problem=None)

    def plan(**extra: Any) -> Any:
        profile = load({"name": "x", "model": {"path": "m"}, "engine": "vllm", "vllm": {"extra-args": extra}})
        return vllm_memory(profile, folder, select_device("auto", inventory, {}), inventory)

    one, staged = plan(), plan(**{"pipeline-parallel-size": 4})
    assert (staged.weight_bytes * 4, staged.bytes_per_token * 4) == (one.weight_bytes, one.bytes_per_token)
    uneven = plan(**{"pipeline-parallel-size": 3})
    assert uneven.weight_bytes == one.weight_bytes * 3 // 8
    assert plan(**{"cpu-offload-gb": 10}).weight_bytes == plan(**{"cpu-offload-gb": 1e300}).weight_bytes == 0
    assert plan(quantization="fp8") is None
    assert plan(**{"enable-expert-parallel": True}) is None
    assert plan(**{"enable-expert-parallel": False}) == one


def test_graphs_are_of_vllm_s_sizes() -> None:
    assert graph_sizes(1) == [1, 2]
    assert len(graph_sizes(256)) == 51
