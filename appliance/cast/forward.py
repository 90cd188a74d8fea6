"""What `ingot verify` runs from a cast on a GPU: the bundled model, with the backends a launch would choose."""

from __future__ import annotations

from pathlib import Path

import msgspec

from appliance.checkpoint.config import read_config
from appliance.checkpoint.selection import chosen_fields
from appliance.core_protocol import EngineConfig
from appliance.hardware.gpu import Gpu
from kernels.cast.manifest import Manifest
from kernels.cast.words import ForwardProof
from kernels.catalogue import OPS
from kernels.context import CastSummary

MODEL = Path(__file__).parents[1] / "selftest" / "model"


def configs(cast: Manifest, gpu: Gpu) -> tuple[EngineConfig, EngineConfig]:
    """The model in bfloat16 on `gpu`, sealed to `cast`; and its reference, in float32 on the CPU."""
    return (
        _config("cuda:0", "bfloat16", gpu.compute_capability, cast.summary()),
        _config("cpu", "float32", None, None),
    )


def without_kernels(proof: ForwardProof, cast: Manifest) -> list[str]:
    """A problem for each op that plain torch computed although a complete cast has kernels for it."""
    if cast.models:  # a cast for some models may lack this one's kernels
        return []
    compiled = {op.name for op in OPS if any(backend.is_compiled for backend in op.of("native"))}
    return [
        f"{op} ran in plain torch, although the cast has kernels for it."
        for op, backend in proof.backends.items()
        if op in compiled and backend == "torch"
    ]


def as_json(config: EngineConfig) -> str:
    return msgspec.json.encode(config).decode()


def _config(device: str, dtype: str, capability: tuple[int, int] | None, cast: CastSummary | None) -> EngineConfig:
    graphs = capability is not None
    chosen = chosen_fields(
        read_config(MODEL), device, capability=capability, dtype=dtype, kv_cache_dtype=dtype, cast=cast,
        cuda_graphs=graphs,
    )  # fmt: skip
    return EngineConfig(
        model_folder=str(MODEL), device=device, dtype=dtype, kv_cache_dtype=dtype, max_model_len=512, max_num_seqs=8,
        max_num_batched_tokens=128, block_size=16, num_blocks=128, enforce_eager=not graphs, **chosen,
    )  # fmt: skip
