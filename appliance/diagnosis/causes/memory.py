"""GPU or host memory does not suffice for the weights, the cache or a step."""

from appliance.diagnosis.cause import Cause

CAUSES = (
    Cause(
        family="memory",
        name="gpu-out-of-memory",
        pattern=r"CUDA out of memory\. Tried to allocate (?P<wanted>[\d.]+ \w+).{0,200}?"
        r"total capac\w+ of (?P<total>[\d.]+ \w+) of which (?P<free>[\d.]+ \w+) is free",
        summary="The GPU's memory is full: {wanted} more was needed, and of its {total} only {free} was free.",
        fix="Give the engine less of the GPU, so that a step's own memory still fits beside the cache; if another "
        "process holds GPU memory (nvidia-smi lists them), end it first.",
        patch={"gpu-memory-utilization": 0.8},
    ),
    Cause(
        family="memory",
        name="gpu-out-of-memory",
        pattern=r"CUDA out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|CUDA error: out of memory",
        summary="The GPU's memory is full.",
        fix="Give the engine less of the GPU, so that a step's own memory still fits beside the cache; if another "
        "process holds GPU memory (nvidia-smi lists them), end it first.",
        patch={"gpu-memory-utilization": 0.8},
    ),
    Cause(
        family="memory",
        name="host-out-of-memory",
        pattern=r"(DefaultCPUAllocator|alloc_cpu).{0,80}(can't|not enough).{0,40}allocate.{0,60}?"
        r"(tried to allocate (?P<wanted>\d+ bytes))?",
        summary="This machine's memory does not hold the model and its cache.",
        fix="Make the cache smaller with a shorter context, or choose a smaller model.",
        patch={"max-model-len": 2048},
    ),
    Cause(
        family="memory",
        name="host-out-of-memory",
        pattern=r"^MemoryError|std::bad_alloc|Cannot allocate memory|\[Errno 12\]",
        summary="This machine's memory is used up.",
        fix="End what else uses much memory, make the cache smaller with a shorter context, or choose a smaller model.",
        patch={"max-model-len": 2048},
    ),
    Cause(
        family="memory",
        name="cache-too-small",
        pattern=r"(No available memory for the cache blocks|KV cache (is )?(needed|required).{0,80}"
        r"larger than the available|no room for .{0,20}cache)",
        summary="After the weights, too little memory is left for the cache of even one request of full length.",
        fix="Allow a shorter context, or give the engine more of the memory.",
        patch={"max-model-len": 2048},
    ),
)
