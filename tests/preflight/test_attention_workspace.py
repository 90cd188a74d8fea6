"""The plan counts what the chosen backend of attention works in, and nothing for those that were passed over."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.checkpoint.config import read_config
from appliance.explain.report import machine_with
from appliance.hardware import Host, Inventory
from appliance.hardware.engine_machine import Machine
from appliance.hardware.known import known_gpu
from appliance.home import Home
from appliance.plan.effective import Effective, resolve
from appliance.profile.document import apply_patch, load
from kernels.paged_attention import SCRATCH_BYTES, modules
from kernels.paged_attention.workspace import Step, workspace_bytes
from tests.tiny import write_checkpoint

GIB = 1 << 30
HOST = Host(cores=4, memory_bytes=64 * GIB, memory_available_bytes=64 * GIB)
CPU = Inventory(gpus=(), driver_version=None, cuda_version=None, host=HOST, problem=None)
LONG = 131072


def resolved(home: Home, gpu: str | None = None, **changes: Any) -> Effective:
    folder = home.models / "long"
    if not folder.exists():
        write_checkpoint(folder, dtype="bfloat16", head_dim=64, max_position_embeddings=LONG)
    document = apply_patch({"name": "chat", "model": {"path": "long"}, "max-num-seqs": 4}, changes)
    inventory = machine_with(known_gpu(gpu), HOST) if gpu else CPU
    machine = Machine(inventory=inventory, libraries={"triton": "3.7", "flashinfer": "0.6.13"})
    found = resolve(load(document), config=read_config(folder), machine=machine)
    assert found.memory.max_model_len == LONG
    return found


@pytest.mark.parametrize(
    ("gpu", "wanted", "chosen"),
    [(None, "auto", "torch"), ("RTX PRO 6000", "auto", "triton"), ("H100", "triton", "triton"),
     ("H100", "flashinfer", "flashinfer"), ("H100", "torch", "torch")],
)  # fmt: skip
def test_attention_is_counted_as_its_backend_needs_it(home: Home, gpu: str | None, wanted: str, chosen: str) -> None:
    found = resolved(home, gpu, **{"backends.attention": wanted})
    assert found["backends.attention"].value == chosen
    counted = found.memory.workspace.attention
    assert counted == workspace_bytes(chosen, found.context, Step(2048, 4, LONG))
    mask = 2048 * LONG * 3  # as booleans, and in bfloat16
    if chosen == "flashinfer":
        assert counted == modules.workspace_bytes(found.context)
    else:
        assert (counted > mask) == (chosen == "torch")


def test_only_gpus_with_a_bulk_copy_engine_copy_pages_together_for_triton(home: Home) -> None:
    """A whole context's keys and values in the model's dtype, though the cache is in 8 bits."""
    hopper, ampere = (
        resolved(home, gpu, **{"backends.attention": "triton", "kv-cache-dtype": "fp8"}) for gpu in ("H100", "A100")
    )
    context = hopper.context
    assert ampere.memory.workspace.attention == SCRATCH_BYTES
    token = 2 * context.num_kv_heads * context.head_dim * 2
    assert hopper.memory.workspace.attention == SCRATCH_BYTES + LONG * token


def test_where_all_layers_have_windows_a_chunk_sees_no_more_than_one_and_itself(home: Home) -> None:
    write_checkpoint(
        home.models / "long",
        "mistral",
        dtype="bfloat16",
        head_dim=64,
        max_position_embeddings=LONG,
        sliding_window=4096,
    )
    found = resolved(home)
    sees = 4096 + 2048 + found.memory.block_size
    assert found.memory.workspace.attention == workspace_bytes("torch", found.context, Step(2048, 4, sees))


def test_a_backend_of_vllm_is_left_to_vllm_s_own_measurement(home: Home) -> None:
    found = resolved(home, "H100", engine="vllm")
    assert found["backends.attention"].value == "flash-attn"
    assert found.memory.workspace.attention == 0
