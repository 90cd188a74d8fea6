"""The memory plan of a profile that vLLM runs, also of a model that Ingot does not read."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

from msgspec import structs

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.json_file import read_object
from appliance.checkpoint.memory import MemoryPlan, plan_memory
from appliance.checkpoint.outline import read_outline
from appliance.checkpoint.safetensors import read_index
from appliance.hardware.device import Device
from appliance.hardware.machine import Inventory
from appliance.plan.capacity import device_memory, memory_limits
from appliance.profile.schema import Profile
from appliance.vllm.footprint import Spread, vllm_footprint
from kernels.selection import AUTO

GIB: Final = 1 << 30
MOST_OFFLOADED_GIB: Final = 1 << 20
_HALVES: Final = ("bfloat16", "float16")


def vllm_memory(profile: Profile, folder: Path, device: Device, inventory: Inventory) -> MemoryPlan | None:
    """None where only vLLM can tell: of other kinds of attention, of weights that are no safetensors, and of those that
    it quantises itself or spreads by experts."""
    extra = profile.vllm.extra_args
    if extra.get("enable-expert-parallel"):
        return None
    spread = Spread(
        shards=profile.tensor_parallel_size,
        stages=max(int(extra.get("pipeline-parallel-size", 1)), 1),
        offloaded=int(min(max(extra.get("cpu-offload-gb", 0), 0), MOST_OFFLOADED_GIB) * GIB),
    )
    try:
        if "quantization" in extra and "quantization_config" not in read_object(folder / "config.json", "config"):
            return None
        own, index = read_outline(folder).dtype, read_index(folder)
        dtype = profile.dtype if profile.dtype != AUTO else own if own in _HALVES else "bfloat16"
        cache = dtype if profile.kv_cache_dtype == AUTO else profile.kv_cache_dtype
        limits = memory_limits(profile, dtype=dtype, kv_cache_dtype=cache)
        footprint = vllm_footprint(
            folder,
            index,
            limits,
            device=device.kind,
            spread=spread,
            graphs=device.gpu is not None and not profile.enforce_eager,
        )
    except CheckpointError:  # which preflight reports, of the models that it reads
        return None
    if footprint is None:
        return None
    # vLLM's share is of a GPU's whole memory; where the size of the cache is given, it does not ask for a share.
    share = 1.0 if profile.kv_cache_memory_bytes is not None else profile.gpu_memory_utilization
    memory = device_memory(device, inventory, share)
    plan = plan_memory(footprint, limits, memory, estimated=True)
    if device.gpu is not None or not plan.fits:
        return plan
    told = structs.replace(limits, kv_cache_memory_bytes=cpu_cache_gib(plan.cache_bytes) * GIB)
    return plan_memory(footprint, told, memory, estimated=True)


def cpu_cache_gib(cache_bytes: int) -> int:
    """The cache size passed to vLLM on a CPU: only whole GiB work with every version."""
    return max(math.ceil(cache_bytes / GIB), 1)
