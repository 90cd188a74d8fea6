"""The core's own process on a GPU, sealed: it loads and generates from a cast, and from nothing else.

INGOT_GPU_CAST names the cast: whole, of this GPU's architecture, moved since it was made, and read-only.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from appliance.core_protocol import EngineConfig, Fatal, FinishReason, Loaded, Outputs, SamplingParams, Submit
from tests.configured import engine_config
from tests.engine.test_core import CORE, FrontDoor
from tests.tiny import ALIGNED, FP8, write_checkpoint

CAST = os.environ.get("INGOT_GPU_CAST")
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.skipif(CAST is None, reason="needs a cast, named in INGOT_GPU_CAST"),
]

MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama": ("llama", {}, "bfloat16"),
    "qwen3, FP8 cache": ("qwen3", {}, "float8_e4m3fn"),
    "mistral, heads of 128, window": ("mistral", {"head_dim": 128, "sliding_window": 100}, "bfloat16"),
    "minimax_m2 in FP8": ("minimax_m2", {"rotary_dim": 32, "quantization_config": FP8}, "bfloat16"),
    "mixtral": ("mixtral", {}, "bfloat16"),
}
# Short ones that run together, and one long enough for its pages to be copied together first.
PROMPTS = {"short": 5, "middle": 120, "long": 1500}


@pytest.fixture
def door() -> Iterator[FrontDoor]:
    door = FrontDoor()
    yield door
    door.close()


@pytest.mark.parametrize("name", MODELS)
def test_a_sealed_core_generates_and_starts_no_program(tmp_path: Path, door: FrontDoor, name: str):
    """Prompts of all lengths, greedy and sampled; with no compiler, and no child process but the heartbeat."""
    family, changes, cache = MODELS[name]
    checkpoint = write_checkpoint(
        tmp_path / "model", family, dtype="bfloat16", max_position_embeddings=2048, **ALIGNED | changes
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    process = subprocess.Popen([*CORE, str(door.folder)], env=environ | {"PATH": "/nonexistent"})
    settings: dict[str, dict[str, Any]] = {
        "greedy": {"temperature": 0.0},
        "sampled": {"temperature": 1.0, "top_k": 20, "top_p": 0.9, "seed": 1},
    }
    try:
        door.send(_sealed(checkpoint, cache))
        door.until(lambda message: isinstance(message, Loaded | Fatal), timeout_s=120)
        for prompt, length in PROMPTS.items():
            ids = [6 + i * 7 % 500 for i in range(length)]
            for kind, params in settings.items():
                sampling = SamplingParams(max_tokens=12, ignore_eos=True, **params)
                door.send(Submit(request_id=f"{prompt} {kind}", prompt_token_ids=ids, sampling=sampling))
        left = {f"{prompt} {kind}" for prompt in PROMPTS for kind in settings}
        while left:
            for message in door.until(lambda message: isinstance(message, Outputs), timeout_s=60):
                for output in message.outputs if isinstance(message, Outputs) else ():
                    assert output.error is None, output.error
                    if output.finish_reason is not None:
                        assert output.finish_reason is FinishReason.LENGTH
                        left.discard(output.request_id)
        compilers = {"gcc", "cc", "nvcc", "ninja", "ptxas", "cicc"}
        assert not compilers & {child.name() for child in psutil.Process(process.pid).children(recursive=True)}
    finally:
        process.kill()
        process.wait()


def _sealed(folder: Path, cache: str) -> EngineConfig:
    return engine_config(
        folder, device="cuda:0", dtype="bfloat16", kv_cache_dtype=cache, cast=CAST, max_model_len=2048, num_blocks=512,
        max_num_batched_tokens=2048, max_num_seqs=8,
    )  # fmt: skip
