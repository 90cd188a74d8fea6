"""What `ingot verify` runs from a cast on a GPU: the bundled model, with the backends that a launch would choose."""

from __future__ import annotations

from pathlib import Path

import msgspec

from appliance.checkpoint.config import read_config
from appliance.checkpoint.selection import selection_context
from appliance.hardware.gpu import Gpu
from appliance.protocol import EngineConfig
from kernels.cast import check
from kernels.cast.words import ForwardProof
from kernels.catalogue import OPS
from kernels.libraries import installed
from kernels.selection import chosen_names, explain

MODEL = Path(__file__).parents[1] / "selftest" / "model"


def configs(cast: Path, gpu: Gpu) -> tuple[EngineConfig, EngineConfig]:
    """The model in bfloat16 on `gpu`, sealed to `cast`; and its reference, in float32 on the CPU."""
    return (
        _config("cuda:0", "bfloat16", capability=gpu.compute_capability, cast=cast),
        _config("cpu", "float32", capability=None, cast=None),
    )


def without_kernels(proof: ForwardProof, cast: Path) -> list[str]:
    """The ops that plain torch computed although a whole cast has kernels for them, as sentences."""
    if check.read(cast).models:  # a cast for some models may lack those of this one
        return []
    compiled = {op.name for op in OPS if any(backend.is_compiled for backend in op.of("native"))}
    return [
        f"{op} was computed by torch, although the cast has kernels for it."
        for op, backend in proof.backends.items()
        if op in compiled and backend == "torch"
    ]


def as_json(config: EngineConfig) -> str:
    return msgspec.json.encode(config).decode()


def _config(device: str, dtype: str, *, capability: tuple[int, int] | None, cast: Path | None) -> EngineConfig:
    context = selection_context(
        read_config(MODEL),
        device=device.partition(":")[0],
        capability=capability,
        dtype=dtype,
        kv_cache_dtype=dtype,
        cuda_graphs=False,
        libraries=installed(),
        cast=check.read(cast).summary() if cast else None,
    )
    return EngineConfig(
        model_folder=str(MODEL), device=device, dtype=dtype, kv_cache_dtype=dtype, max_model_len=512, max_num_seqs=8,
        max_num_batched_tokens=128, block_size=16, num_blocks=128, backends=chosen_names(explain(OPS, context)),
        keep_fp8=context.fp8_blocks is not None,
    )  # fmt: skip
