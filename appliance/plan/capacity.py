"""A profile's part of a memory plan, whichever engine is planned for."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from appliance.checkpoint.memory import DeviceMemory, MemoryLimits, gpu_memory, host_memory
from appliance.hardware.device import Device
from appliance.hardware.gpu import Gpu
from appliance.hardware.machine import Inventory
from appliance.profile.schema import Profile


def memory_limits(profile: Profile, *, dtype: str, kv_cache_dtype: str, block_size: int | None = None) -> MemoryLimits:
    """The two formats are given, since `auto` means something else to each engine; `block_size` where it is not the
    profile's."""
    return MemoryLimits(
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        max_model_len=profile.max_model_len,
        max_num_seqs=profile.max_num_seqs,
        max_num_batched_tokens=profile.max_num_batched_tokens,
        block_size=profile.block_size if block_size is None else block_size,
        kv_cache_memory_bytes=profile.kv_cache_memory_bytes,
        prefix_caching=profile.prefix_caching,
        num_speculative_tokens=profile.speculative_config.most,
    )


def device_memory(device: Device, inventory: Inventory, gpu_share: float) -> DeviceMemory:
    """`gpu_share` of a GPU's memory; on a host an engine may take what is free."""
    return host_memory(inventory.host) if device.gpu is None else gpu_memory(device.gpu, gpu_share)


def memory_of_rank(gpus: Sequence[Gpu], inventory: Inventory, gpu_share: float, ranks: int) -> DeviceMemory:
    """What each of `ranks` may count on: that of the GPU with the least, or its part of the host's."""
    if gpus:
        return min((gpu_memory(gpu, gpu_share) for gpu in gpus), key=lambda memory: memory.available)
    whole = host_memory(inventory.host)
    return structs.replace(whole, total=whole.total // ranks, free=whole.free // ranks, reserve=whole.reserve // ranks)
