"""Too little GPU or host memory for the weights, the KV cache, the graphs or a step; processes killed for it."""

from appliance.diagnosis.cause import Cause, halved, moved, number, share, unless_beyond_any_host
from appliance.exit_status import KILLED_BY

_OOM = ("cuda out of memory", "cuda error: out of memory", "outofmemoryerror", "hip out of memory", "xpu out of memory")
_NUMBERS = (
    r"Tried to allocate (?P<wanted>[\d.]{1,12} \w{1,60}).{0,200}?total capac\w{1,60} of (?P<total>[\d.]{1,12} "
    r"\w{1,60}) of which "
    r"(?P<free>[\d.]{1,12} \w{1,60}) is free"
)
_LESS = (
    "Give the engine less of the GPU, so that activations fit beside the KV cache. If another process uses GPU "
    "memory (nvidia-smi lists it), end it first."
)

LOOK_FOR_OOM = (
    "Look for an out-of-memory line in the kernel log. If there is one, give the machine or the container more memory, "
    "stop other programs that use a lot, or use a shorter context. Otherwise find out who ended the process."
)
OOM_COMMAND = "dmesg -T | grep -i -e 'out of memory' -e oom"

_SHORTER = {"max-model-len": halved("max-model-len")}
_SMALLER_SHARE = {"gpu-memory-utilization": moved("gpu-memory-utilization", -0.1)}
_LARGER_SHARE = {"gpu-memory-utilization": moved("gpu-memory-utilization", 0.05)}

CAUSES = (
    Cause(
        family="memory",
        name="oom-killed",
        signs=("out of memory: killed process", "memory cgroup out of memory", "invoked oom-killer",
               "oom-kill:constraint", "killed by the oom killer", "oom-kill", "oomkilled",
               "out of memory: kill process"),
        details=r"killed process (?P<pid>\d{1,9}) \((?P<name>[^)]{1,40})\)",
        summary="The kernel killed the engine because the machine or the container ran out of memory.",
        fix="Give the container or the machine more memory, stop other programs that use a lot, or choose a smaller "
        "model or a shorter context.",
        look="free -g; dmesg -T | grep -i -e 'killed process' -e oom",
        line=True,
        warning=True,
        deadly=True,
    ),
    Cause(
        family="memory",
        name="node-out-of-memory",
        signs=("killed due to the node running low on memory", "memory on the node", "due to memory pressure"),
        summary="A worker was killed because its host ran low on memory.",
        fix="Give that host more memory, or run fewer workers on it.",
        line=True,
    ),
    Cause(
        family="memory",
        name="compiler-killed",
        signs=("died due to signal 9", "fatal error: killed signal terminated program",
               "killed signal terminated program"),
        summary="The kernel killed a compiler started by the engine because memory ran out.",
        fix="Run one compiler at a time.",
        patch={"vllm.environment.MAX_JOBS": "1"},
        compiles=True,
        line=True,
    ),
    Cause(
        family="memory",
        name="cache-too-small",
        signs=("kv cache is needed", "estimated maximum model length", "stored in kv cache"),
        pattern=r"max seq len \((?P<asked>\d{1,9})\).{0,400}?(?:maximum model length is"
        r"|stored in KV cache) \(?(?P<fits>\d{1,9})",
        summary="The KV cache is too small for one request of {asked} tokens: {fits} fit.",
        fix="Set the context to {fits} tokens, or give the engine more GPU memory.",
        patch={"max-model-len": number("fits")},
    ),
    Cause(
        family="memory",
        name="cache-too-small",
        signs=("larger than the available kv cache memory",
               "larger than the maximum number of tokens that can be stored", "kv cache is needed"),
        details=r"max seq len "
            r"\((?P<asked>\d{1,9})\).{0,80}?(?P<needed>[\d.]{1,12}) ?Gi?B.{0,120}?\((?P<available>[\d.]{1,12}) ?Gi?B",
        summary="The KV cache for one request of full length does not fit ({needed} GiB needed, {available} GiB "
        "left).",
        fix="Shorten the context, or give the engine more GPU memory.",
        patch=_SHORTER,
    ),
    Cause(
        family="memory",
        name="cache-larger-than-memory",
        signs=("is less than requested memory for kv", "less than the requested memory for kv"),
        details=r"\((?P<free>[\d.]{1,12})/[\d.]{1,12} ?GiB\).{0,120}?requested memory for kv "
            r"\((?P<asked>[\d.]{1,12}) ?Gi?B",
        summary="The profile asks for a KV cache of {asked} GiB, and {free} GiB of memory is free.",
        fix="Let the engine size the KV cache, or stop other programs that use memory.",
        patch={"kv-cache-memory-bytes": None},
    ),
    Cause(
        family="memory",
        name="no-room-for-cache",
        signs=("no available memory for the cache blocks", "not enough gpu memory available to serve", "no room for",
               "gpu blocks: 0", "num_gpu_blocks=0", "cannot auto-fit max_model_len"),
        pattern=r"cache|serve|blocks",
        summary="After the weights and activations, none of the engine's memory share is left for the KV cache.",
        fix="Give the engine more GPU memory, or choose a smaller or quantised checkpoint. If another process uses "
        "GPU memory, end it first.",
        patch=_LARGER_SHARE,
    ),
    Cause(
        family="memory",
        name="gpu-memory-held-by-others",
        signs=("less than desired gpu memory utilization", "less than desired cpu memory utilization"),
        pattern=r"\((?P<free>[\d.]{1,12})/(?P<total>[\d.]{1,12}) ?Gi?B\).{0,80}?utilization \((?P<share>[\d.]{1,12}), "
        r"(?P<asked>[\d.]{1,12})",
        summary="Only {free} of {total} GiB was free at the start, and the profile asks for {asked} GiB.",
        fix="End the process that uses the memory (nvidia-smi lists it), or ask for less.",
        patch={"gpu-memory-utilization": share("free", "total")},
        look="nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv",
    ),
    Cause(
        family="memory",
        name="gpu-memory-released-meanwhile",
        signs=("error in memory profiling", "memory profiling detected", "initial free memory"),
        pattern=r"initial free memory.{0,20}?(?P<before>\d[\d.]{0,15}).{0,60}?"
        r"current free memory.{0,20}?(?P<after>\d[\d.]{0,15})",
        summary="While the engine measured its memory, another process gave some of the GPU's back: {before} was free "
        "before and {after} after.",
        fix="Start it again once no other process comes or goes on this GPU, or say how large the cache is to be "
        "(kv-cache-memory-bytes): then nothing is measured.",
    ),
    Cause(
        family="memory",
        name="gpu-memory-held-by-others",
        signs=("less than desired gpu memory utilization", "less than desired cpu memory utilization",
               "memory profiling detected", "initial free memory"),
        pattern=r"less than desired|other processes",
        summary="Less memory was free at the start than the profile asks for: another process is using it.",
        fix="End the process that uses the memory (nvidia-smi lists it), or ask for a smaller share.",
        patch=_SMALLER_SHARE,
        look="nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv",
    ),
    Cause(
        family="memory",
        name="static-pool-too-small",
        signs=("increase --mem-fraction-static", "mem_fraction_static", "mem-fraction-static"),
        pattern=r"(?:not enough|increase|too small)",
        summary="The engine's share of GPU memory is too small for the weights and a KV cache.",
        fix="Give the engine more GPU memory, use more GPUs, or choose a smaller checkpoint.",
        patch=_LARGER_SHARE,
    ),
    Cause(
        family="memory",
        name="sampler-out-of-memory",
        signs=("warming up sampler", "warming up pooler"),
        details=r"with (?P<requests>\d{1,9}) dummy",
        summary="GPU memory is full: there is no room to sample for this many requests ({requests}).",
        fix="Reduce the number of concurrent requests.",
        patch={"max-num-seqs": halved("max-num-seqs")},
    ),
    Cause(
        family="memory",
        name="graphs-out-of-memory",
        signs=_OOM,
        where=r"cuda_?graph|graph_runner|capture_model",
        details=rf"{_NUMBERS}",
        summary="GPU memory ran out while capturing CUDA graphs.",
        fix="Give the KV cache less of the GPU, or run without CUDA graphs.",
        patch=_SMALLER_SHARE,
    ),
    Cause(
        family="memory",
        name="weights-out-of-memory",
        signs=_OOM,
        where=r"create_weights|load_weights|load_model|model_loader|initialize_model|make_layers|init_model",
        pattern=_NUMBERS,
        summary="The weights do not fit: {wanted} more was needed, and only {free} of the GPU's {total} was free.",
        fix="Stop other processes that use GPU memory, use more GPUs (tensor-parallel-size), or choose a smaller or "
        "quantised checkpoint.",
        look="nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv",
    ),
    Cause(
        family="memory",
        name="gpu-out-of-memory",
        signs=_OOM,
        pattern=_NUMBERS,
        summary="GPU memory is full: {wanted} more was needed, and only {free} of {total} was free.",
        fix=_LESS,
        patch=_SMALLER_SHARE,
    ),
    Cause(
        family="memory",
        name="gpu-out-of-memory",
        signs=(*_OOM, "out of memory", "cublas_status_alloc_failed", "cudnn_status_alloc_failed",
               "cudaerrormemoryallocation", "cuda_error_out_of_memory", "cuda out of memory occurred",
               "failed to allocate memory on gpu", "failed to allocate device memory"),
        pattern=r"cuda|gpu|hip|xpu|device|OutOfMemoryError|status_alloc|allocat",
        summary="GPU memory is full.",
        fix=_LESS,
        patch=_SMALLER_SHARE,
    ),
    Cause(
        family="memory",
        name="gpu-out-of-memory",
        signs=("cudamalloc failed", "cuda error: out of memory", "nvmapmemalloc", "curesult error: 2",
               "the resource allocation failed"),
        pattern=r"out of memory|error 12\b|resource allocation failed",
        details=r"allocating (?P<wanted>[\d.]{1,12} \w{1,10}) on device (?P<device>\d{1,4})",
        summary="GPU memory is full: {wanted} more was needed on GPU {device}.",
        fix="Free GPU memory (nvidia-smi lists who uses it), or use a shorter context, fewer layers on the GPU, or a "
        "smaller model.",
        look="nvidia-smi",
        line=True,
    ),
    Cause(
        family="memory",
        name="gpu-out-of-memory",
        signs=("nccl warn",),
        pattern=r"cuda failure (?:2 )?'out of memory'|failed to cuda\w{0,20}alloc|cuda failure 'out of memory'",
        summary="GPU memory is full: NCCL had no room for its buffers.",
        fix=_LESS,
        patch=_SMALLER_SHARE,
        line=True,
        aside=True,
    ),
    Cause(
        family="memory",
        name="gpu-out-of-memory",
        signs=("nvml_success == r",),
        summary="GPU memory is full. PyTorch could not report the details because NVML did not respond.",
        fix=_LESS,
        patch=_SMALLER_SHARE,
    ),
    Cause(
        family="memory",
        name="driver-out-of-memory",
        signs=("nv_err_no_memory",),
        summary="The driver could not allocate memory for the GPU. Where GPU and CPU share memory, as on a DGX "
        "Spark, other programs and the page cache use it too.",
        fix="Give the engine less memory, stop other programs that use a lot, and drop the page cache before "
        "starting.",
        patch=_SMALLER_SHARE,
        command="sync; echo 3 > /proc/sys/vm/drop_caches",
        look="free -g",
        line=True,
    ),
    Cause(
        family="memory",
        name="host-out-of-memory",
        signs=("failed to map segment from shared object", "openblas error: memory allocation"),
        pattern=r"shared object(?!: operation not permitted)|^OpenBLAS error",
        summary="The machine's memory, or the engine's memory limit, is too small even for its libraries.",
        fix="Raise the limit (ulimit -v, or the container's), or stop other programs that use a lot of memory.",
        look="ulimit -v; free -g",
        line=True,
    ),
    Cause(
        family="memory",
        name="host-out-of-memory",
        signs=("defaultcpuallocator", "alloc_cpu"),
        pattern=r"(?:can't|not enough).{0,40}allocate",
        details=r"tried to allocate (?P<asked>\d{1,20}) bytes",
        summary="The machine does not have enough memory for the model and its KV cache.",
        fix="Use a shorter context, or choose a smaller model.",
        patch={key: unless_beyond_any_host("asked", value) for key, value in _SHORTER.items()},
    ),
    Cause(
        family="memory",
        name="swap-space-too-large",
        signs=("too large swap space", "swap space is too large"),
        summary="The swap space for the KV cache is larger than this machine's memory allows.",
        fix="Remove swap-space, or reduce it.",
    ),
    Cause(
        family="memory",
        name="locked-memory",
        signs=("failed to pin", "cudahostalloc", "cudahostregister", "pin_memory", "memlock"),
        pattern=r"fail|error|out of memory|limit",
        summary="Host memory could not be pinned for the GPU.",
        fix="Raise the locked-memory limit (ulimit -l unlimited; in a container --ulimit memlock=-1), or offload "
        "less to the host.",
        look="ulimit -l",
    ),
    Cause(
        family="memory",
        name="no-room-for-cache",
        signs=("not enough memory", "not enought memory"),
        where=r"/sglang/",
        summary="The engine's share of the GPU is used up by the weights: nothing is left for the KV cache.",
        fix="Give the engine more of the GPU, or use a smaller or quantised model.",
        patch=_LARGER_SHARE,
        mute=True,
    ),
    Cause(
        family="memory",
        name="host-out-of-memory",
        signs=("memoryerror", "std::bad_alloc", "bad_alloc", "cannot allocate memory", "[errno 12]",
               "mmap failed: enomem", "unable to mmap", "unable to allocate", "not enough memory",
               "not enought memory", "insufficient memory"),
        summary="The machine is out of memory.",
        fix="Stop other programs that use a lot of memory, use a shorter context, or choose a smaller model.",
        patch=_SHORTER,
    ),
    Cause(
        family="memory",
        name="killed",
        signs=("killed", "137", "sigkill", "signal 9", "exit code: -9", "exitcode: -9", "died (-9)", "exit code -9",
               "return code = -9"),
        pattern=r"^(?:\S{1,80}: )?(?:line \d{1,9}: )?\s{0,8}(?:\d{1,9} )?Killed\b(?! by)|[\]%|] ?Killed\s{0,80}$"
        r"|(?:exit(?:ed)?(?: with)?(?: code| status)?|return code) ?[:=]? ?(?:137|-9)\b|died \(-9\)"
        r"|code=killed, status=9/KILL|signal: killed|(?:signal 9|(?<!using )(?<!sending )(?<!send )SIGKILL).{0,40}$",
        summary=f"Killed with SIGKILL: {KILLED_BY}.",
        fix=LOOK_FOR_OOM,
        look=OOM_COMMAND,
        line=True,
        deadly=True,
        vague=True,
        mute=True,
    ),
)  # fmt: skip
