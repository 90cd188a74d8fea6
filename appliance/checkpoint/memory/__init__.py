"""The memory plan: what a model takes of a device, and what that leaves to the cache."""

from appliance.checkpoint.memory.cache_shape import CacheShape
from appliance.checkpoint.memory.device import DeviceMemory, Holder, gpu_memory, host_memory
from appliance.checkpoint.memory.fitting import Fitting
from appliance.checkpoint.memory.formats import CACHE_DTYPES, ITEM_BYTES
from appliance.checkpoint.memory.native import NativeFootprint
from appliance.checkpoint.memory.plan import (
    COPIES_PER_SEQUENCE,
    DEFAULT_HOST_CACHE,
    HOST_CACHE_SHARE,
    SHORTEST_USEFUL_CONTEXT,
    MemoryLimits,
    MemoryPlan,
    Segment,
    Workspace,
    plan_memory,
)

__all__ = [
    "CACHE_DTYPES",
    "COPIES_PER_SEQUENCE",
    "DEFAULT_HOST_CACHE",
    "HOST_CACHE_SHARE",
    "ITEM_BYTES",
    "SHORTEST_USEFUL_CONTEXT",
    "CacheShape",
    "DeviceMemory",
    "Fitting",
    "Holder",
    "MemoryLimits",
    "MemoryPlan",
    "NativeFootprint",
    "Segment",
    "Workspace",
    "gpu_memory",
    "host_memory",
    "plan_memory",
]
