"""A hint for exceptions that no row recognises: the family whose vocabulary they use.

The summary stays the exception's own message, and the cause stays open.
"""

from __future__ import annotations

import re

from appliance.diagnosis.stripping import without_advice, without_dumps

# In order: the first that fits counts.
_WORDS = (
    ("abi", r"^(?:\w{1,40}\.){0,8}(?:ImportError|ModuleNotFoundError)\b|undefined symbol|_OpNamespace"),
    ("abi", r"^TypeError: \w{1,60}\(\) (?:got an unexpected keyword|missing \d)"),
    ("abi", r"\w\(\) expected at (?:most|least) \d{1,4} argument"),
    ("driver", r"nvidia\.com/gpu|nvidia-container|\bXid\b|\bNVRM\b|\bnvidia-smi\b|'nvidia'|device handle for GPU"),
    ("driver", r"failed to initiali[sz]e CUDA|no CUDA-capable device"),
    ("offline", r"^(?:urllib3|requests|httpx|httpcore)\.|OfflineMode"),
    ("mig", r"\bMIG\b"),
    ("memory", r"(?:not enough|insufficient|exceed|out of|no free|too little).{0,40}\b(?:memory|vram|blocks)\b"),
    ("memory", r"\b\w{2,10}Malloc failed|requires more .{0,20}memory"),
    ("memory", r"(?:unable|failed) to allocate \w{1,20} .{0,20}buffer"),
    ("port", r"\bbind\w{0,4}\b.{0,40}\b(?:socket|address|port)\b|address (?:already )?in use|\blisten tcp\b"),
    ("nccl", r"\bnccl\w*|all_?reduce|all_?gather|collective|\bnvshmem|\bgloo\b|symmetric memory"),
    ("nccl", r"\bMPI(?:_\w{1,30})?\b|\bUCX\b|\bNIXL\b|libfabric"),
    ("multi-node", r"\braylet\b|heartbeats|\betcd\b|\bNATS\b|\bmpirun\b|slots available"),
    ("multi-node", r"\bray\b|placement group|rendezvous|\bnodes?\b.{0,40}(?:cluster|rank|join)"),
    ("driver", r"\bnvml\w*|nvidia driver|cuda driver|cuInit|cudaGetDevice\w*|\bcuda (?:runtime|version)\b|fabric"),
    ("jit-toolchain", r"\b(?:nvcc|ninja|ptxas|nvrtc|cubin|nvjitlink|jit)\b|deep_?gemm|compil\w{1,20} (?:error|fail)"),
    ("compile", r"\b(?:torch\W{1,3}dynamo|inductor|torch\.compile|fx graph|aot_?autograd|auto_functionalized)\b"),
    ("arch", r"compute capability|\bsm_?\d{2,3}[af]?\b|cuda arch"),
    ("model-config", r"\btokenizer|projector type|model architecture|\bhparams"),
    ("weights", r"\btensor (?:'[\w.]|[\w.]{1,200}\.(?:weight|bias)\b)|\bGGUF file|\bdigest mismatch\b"),
    ("quant-dtype", r"quanti[sz]\w*|\b(?:fp8|nvfp4|mxfp4|int4|int8|awq|gptq|gguf|marlin|dtypes?)\b|bfloat16|float16"),
    ("weights", r"safetensors?|checkpoint|state_dict|\bshards?\b|loaded_weight|weight_loader|load_weights"),
    ("model-config", r"tokeniz\w+|config\.(?:json|pbtxt)|architecture|model.type|chat.template|rope_\w+"),
    ("model-config", r"attention heads"),
    ("backend", r"\bbackends?\b|\bkernels?\b.{0,60}(?:support|implement|available)|flash_?attn|flashinfer|\bmla\b"),
    ("offline", r"hugging ?face|\bhttps?://|download|\bhub\b|connection (?:error|refused)|name resolution"),
    ("permission", r"permission|not permitted|access denied|read-only file system"),
    ("offline", r"\bpull model\b|\bmanifest\b|too many requests"),
    ("host", r"\.service: |MountVolume|\bOs \{ code: |\bcontainer \S{1,80} exited|\bsignal: \w"),
    ("host", r"\bfunction not implemented\b|/dev/shm|/proc/|/sys/"),
    ("host", r"OCI runtime|\bcrun\b|\brunc\b|file system|no space|\bulimit\b"),
    ("config", r"\bsecrets? \"|\bconfigmaps? \"|\binvalid device\b"),
    ("config", r"\bargument\w{0,20}\b|\boption\b|--[a-z][\w-]+|VLLM_[A-Z]|environment var"),
    ("config", r"must be (?:one of|set|at least)"),
    ("abi", r"^(?:AttributeError(?!: '(?:str|int|float|bool|list|dict|tuple|NoneType)' object)|NameError)\b"),
    ("kernel-crash", r"\bCUDA error\b|\bcublas\w*|\bcudnn\w*|cuda graph"),
)
_FAMILIES = tuple((family, re.compile(pattern, re.IGNORECASE)) for family, pattern in _WORDS)
MAX_TEXT = 2000


def family_of(text: str) -> str | None:
    said = without_advice(without_dumps(text[:MAX_TEXT]))
    return next((family for family, words in _FAMILIES if words.search(said)), None)
