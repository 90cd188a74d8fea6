"""What a core takes of a GPU's memory against the plan, part by part. Prints a line of JSON for each model, with
everything that is needed to correct the plan's constants.

INGOT_GPU_CAST names a cast to run sealed from; without one each core compiles its kernels first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from appliance.checkpoint.config import read_config
from appliance.checkpoint.memory import CACHE_DTYPES, MemoryPlan
from appliance.core_protocol import EngineConfig
from appliance.hardware import Gpu, Host, Inventory
from appliance.hardware.engine_machine import Machine
from appliance.plan.effective import Effective, resolve
from appliance.profile.document import load
from kernels.catalogue import graphs_hold_prefills
from kernels.libraries import installed
from kernels.selection import chosen_names
from tests.tiny import FP8, write_checkpoint

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

GIB, MIB = 1 << 30, 1 << 20
ERROR = 0.05
CORE_TIMEOUT_S = 100
LAYERS = {"num_hidden_layers": 2, "max_position_embeddings": 16384}
LONG = LAYERS | {"max_position_embeddings": 131072}
FEW = {"kv-cache-memory-bytes": "1.5 GiB", "max-num-seqs": 8}
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama-wide": (
        "llama",
        LAYERS | {"vocab_size": 65536, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
                  "num_key_value_heads": 8, "head_dim": 128},
        {"kv-cache-memory-bytes": "1 GiB"},
    ),
    "large-vocabulary": (
        "qwen3",
        LAYERS | {"vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16,
                  "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True},
        {"kv-cache-memory-bytes": "1 GiB"},
    ),
    "experts": (
        "qwen3_moe",
        LAYERS | {"vocab_size": 65536, "hidden_size": 2048, "moe_intermediate_size": 768, "num_experts": 64,
                  "num_experts_per_tok": 8, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128},
        {"kv-cache-memory-bytes": "1 GiB"},
    ),
    "fp8": (
        "llama",
        LAYERS | {"vocab_size": 32768, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
                  "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 1, "quantization_config": FP8},
        {"kv-cache-memory-bytes": "1 GiB"},
    ),
    "attention-by-torch": (
        "llama",
        LAYERS | {"vocab_size": 32768, "hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16,
                  "num_key_value_heads": 4, "head_dim": 128},
        # Few at a time: it takes the sequences one by one, 1.5 s a step with 223 of them on an H100.
        {"kv-cache-memory-bytes": "1 GiB", "max-num-seqs": 16, "backends": {"attention": "torch"}},
    ),
    # Prompts of 131,070 tokens, in chunks.
    "long-prompt": (
        "llama",
        LONG | {"vocab_size": 32768, "hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16,
                "num_key_value_heads": 4, "head_dim": 128},
        FEW,
    ),
    "long-prompt-windows": (
        "mistral",
        LONG | {"vocab_size": 32768, "hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16,
                "num_key_value_heads": 4, "head_dim": 128, "sliding_window": 4096},
        FEW,
    ),
    "long-prompt-indexer": (
        "deepseek_v32",
        LONG | {"vocab_size": 32768, "hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16,
                "num_key_value_heads": 16, "q_lora_rank": 512, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
                "qk_rope_head_dim": 64, "v_head_dim": 128, "index_n_heads": 64, "index_head_dim": 128,
                "index_topk": 2048},
        FEW,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_core_takes_what_was_planned(tmp_path: Path, name: str) -> None:
    family, shape, settings = MODELS[name]
    started = time.monotonic()
    folder = write_checkpoint(tmp_path / name, family, dtype="bfloat16", scale=0.02, repeat=True, **shape)
    print(f"\n{name}: written after {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
    effective = planned(folder, settings)
    plan = effective.memory
    config = engine_config(folder, effective)
    command = [sys.executable, "-m", "tests.gpu.measured_core", json.dumps(config)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}  # may be sealed
    found = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True, timeout=CORE_TIMEOUT_S)
    print(f"{name}: measured after {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
    measured = json.loads(found.stdout.splitlines()[-1])
    print("\nMEMORY", json.dumps({"model": name, "planned": parts(plan), "measured": measured}))
    taken = measured["process"] * MIB
    assert taken <= plan.needed_bytes * 1.01, "the plan must not promise too much"
    assert taken == pytest.approx(plan.needed_bytes, rel=ERROR)


def planned(folder: Path, settings: dict[str, Any]) -> Effective:
    free, total = torch.cuda.mem_get_info()
    gpu = Gpu(uuid="GPU-0", index=0, name=torch.cuda.get_device_name(), memory_bytes=total, memory_free_bytes=free,
              compute_capability=torch.cuda.get_device_capability())  # fmt: skip
    host = Host(cores=8, memory_bytes=64 * GIB, memory_available_bytes=64 * GIB)
    inventory = Inventory(gpus=(gpu,), driver_version=None, cuda_version=None, host=host, problem=None)
    document = {"name": "measured", "model": {"path": folder.name}, **settings}
    machine = Machine(inventory=inventory, libraries=installed())
    return resolve(load(document), config=read_config(folder), machine=machine)


def engine_config(folder: Path, effective: Effective) -> dict[str, Any]:
    plan = effective.memory
    config = EngineConfig(
        model_folder=str(folder),
        device="cuda:0",
        dtype=effective["dtype"].value,
        kv_cache_dtype=CACHE_DTYPES[effective["kv-cache-dtype"].value],
        max_model_len=plan.max_model_len,
        max_num_seqs=effective["max-num-seqs"].value,
        max_num_batched_tokens=effective["max-num-batched-tokens"].value,
        block_size=plan.block_size,
        num_blocks=plan.num_blocks,
        window_blocks=plan.window_blocks,
        enforce_eager=effective["enforce-eager"].value,
        keep_fp8=effective.context.fp8_blocks is not None,
        prefill_graphs=graphs_hold_prefills(chosen_names(effective.selection)),
        backends=chosen_names(effective.selection),
        cast=os.environ.get("INGOT_GPU_CAST"),
    )
    return {name: getattr(config, name) for name in config.__struct_fields__}


def parts(plan: MemoryPlan) -> dict[str, Any]:
    """In MiB."""
    sizes = {name: getattr(plan.workspace, name) for name in plan.workspace.__struct_fields__}
    sizes |= {
        "weights": plan.weight_bytes,
        "cache": plan.cache_bytes,
        "graphs": plan.graph_bytes,
        "all": plan.needed_bytes,
    }
    return {name: round(size / MIB, 1) for name, size in sizes.items()}
