"""What a core takes of the host's memory, loaded and busy, is what was planned: the largest resident size that the
system saw (VmHWM), libraries and all, against the plan's sum."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.checkpoint.config import read_config
from appliance.checkpoint.memory import CACHE_DTYPES
from appliance.core_protocol import EngineConfig, Hello, Loaded, Outputs, SamplingParams, Submit
from appliance.hardware import Host, Inventory
from appliance.hardware.engine_machine import Machine
from appliance.plan.effective import Effective, resolve
from appliance.profile.document import load
from appliance.selftest.answers import MODEL
from kernels.selection import chosen_names
from tests.engine.test_core import CORE, FrontDoor, is_a
from tests.tiny import write_checkpoint

GIB = 1 << 30
MIB = 1 << 20
HOST = Host(cores=2, memory_bytes=32 * GIB, memory_available_bytes=32 * GIB, bfloat16=True)
MACHINE = Inventory(gpus=(), driver_version=None, cuda_version=None, host=HOST, problem=None)
ERROR = 0.05

# (family, shape, settings): half a GB of memory and more, so that five hundredths are more than chance.
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "a large vocabulary": (
        "llama",
        {"vocab_size": 131072, "hidden_size": 768, "intermediate_size": 1536, "num_hidden_layers": 4,
         "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": 4096},
        {"max-num-seqs": 32, "kv-cache-memory-bytes": "128 MiB"},
    ),
    "wide layers and a long context": (
        "llama",
        {"vocab_size": 16384, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 2,
         "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 6144,
         "tie_word_embeddings": True},
        {"max-num-seqs": 8, "kv-cache-memory-bytes": "128 MiB"},
    ),
    "experts": (
        "qwen3_moe",
        {"vocab_size": 16384, "hidden_size": 1024, "moe_intermediate_size": 512, "num_experts": 32,
         "num_experts_per_tok": 4, "num_hidden_layers": 3, "num_attention_heads": 16, "num_key_value_heads": 4,
         "head_dim": 64, "max_position_embeddings": 4096},
        {"max-num-seqs": 32, "kv-cache-memory-bytes": "128 MiB"},
    ),
}  # fmt: skip


@pytest.fixture
def front_door():
    end = FrontDoor()
    yield end
    end.close()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Each model, written once."""
    made: dict[str, Path] = {}

    def folder_of(name: str) -> Path:
        if name not in made:
            family, shape, _ = MODELS[name]
            folder = tmp_path_factory.mktemp("models") / "model"
            made[name] = write_checkpoint(folder, family, dtype="bfloat16", scale=0.02, repeat=True, **shape)
        return made[name]

    return folder_of


@pytest.mark.parametrize("name", MODELS)
def test_a_core_takes_what_was_planned(folders, front_door, name):
    check(folders(name), front_door, MODELS[name][2])


def test_the_bundled_model_takes_what_was_planned(tmp_path, front_door):
    check(Path(shutil.copytree(MODEL, tmp_path / "model")), front_door, {})


def test_in_float32_too(folders, front_door):
    check(
        folders("experts"),
        front_door,
        MODELS["experts"][2] | {"dtype": "float32", "max-model-len": 2048, "max-num-seqs": 8},
    )


def check(folder: Path, front_door: FrontDoor, settings: dict[str, Any]) -> None:
    document = {"name": "measured", "model": {"path": folder.name}, "device": "cpu", **settings}
    effective = resolve(load(document), config=read_config(folder), machine=Machine(inventory=MACHINE))
    taken = measured(folder, front_door, effective, load(document).max_num_seqs)
    plan = effective.memory
    parts = {part.key: part.bytes // MIB for part in plan.segments} | {"workspace": plan.workspace}
    print(f"{folder.name} {settings}: taken {taken // MIB}, planned {plan.needed_bytes // MIB}: {parts}")
    assert taken == pytest.approx(plan.needed_bytes, rel=ERROR), f"{taken // MIB} MiB taken, planned {parts}"


def measured(folder: Path, front_door: FrontDoor, effective: Effective, sequences: int) -> int:
    """The most that a core had resident while it loaded, computed its longest prompt, batches of many sizes, and as
    many sequences at once as it may."""
    plan, value = effective.memory, effective
    config = EngineConfig(
        model_folder=str(folder),
        device="cpu",
        dtype=value["dtype"].value,
        kv_cache_dtype=CACHE_DTYPES[value["kv-cache-dtype"].value],
        max_model_len=plan.max_model_len,
        max_num_seqs=sequences,
        max_num_batched_tokens=value["max-num-batched-tokens"].value,
        block_size=plan.block_size,
        num_blocks=plan.num_blocks,
        window_blocks=plan.window_blocks,
        backends=chosen_names(effective.selection),
    )
    process = subprocess.Popen([*CORE, str(front_door.folder)], start_new_session=True)
    try:
        front_door.until(is_a(Hello))
        front_door.send(config)
        front_door.until(is_a(Loaded))
        random = np.random.default_rng(0)
        longest = random.integers(5, 500, plan.max_model_len - 10).tolist()
        generate(front_door, [longest], 1)
        for _ in range(6):
            count, length = (int(random.integers(1, most)) for most in (min(sequences, 16) + 1, 90))
            generate(front_door, random.integers(5, 500, (count, length)).tolist(), 6)
        generate(front_door, [longest] * sequences, 4)  # which share their prefix in the cache
        status = Path(f"/proc/{process.pid}/status").read_text()
    finally:
        process.kill()
        process.wait()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


def generate(front_door: FrontDoor, prompts: Sequence[list[int]], new: int) -> None:
    """Send prompts all at once, and wait until each has its `new` tokens."""
    waiting = set()
    for number, prompt in enumerate(prompts):
        sampling = SamplingParams(max_tokens=new, temperature=0, ignore_eos=True)
        front_door.send(Submit(request_id=str(number), prompt_token_ids=prompt, sampling=sampling))
        waiting.add(str(number))
    while waiting:
        message = front_door.until(is_a(Outputs))[-1]
        assert isinstance(message, Outputs)
        assert not [output.error for output in message.outputs if output.error]
        waiting -= {output.request_id for output in message.outputs if output.finish_reason}
