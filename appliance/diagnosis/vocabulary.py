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
    ("offline", r"^(?:urllib3|requests|httpx|httpcore)\.|OfflineMode"),
    ("mig", r"\bMIG\b"),
    ("memory", r"(?:not enough|insufficient|exceed|out of|no free|too little).{0,40}\b(?:memory|vram|blocks)\b"),
    ("nccl", r"\bnccl\w*|all_?reduce|all_?gather|collective|\bnvshmem|\bgloo\b|symmetric memory"),
    ("multi-node", r"\bray\b|placement group|rendezvous|\bnodes?\b.{0,40}(?:cluster|rank|join)"),
    ("driver", r"\bnvml\w*|nvidia driver|cuda driver|cuInit|cudaGetDevice\w*|\bcuda (?:runtime|version)\b|fabric"),
    ("jit-toolchain", r"\b(?:nvcc|ninja|ptxas|nvrtc|cubin|nvjitlink|jit)\b|deep_?gemm|compil\w{1,20} (?:error|fail)"),
    ("compile", r"\b(?:torch\W{1,3}dynamo|inductor|torch\.compile|fx graph|aot_?autograd)\b"),
    ("arch", r"compute capability|\bsm_?\d{2,3}[af]?\b|cuda arch"),
    ("model-config", r"\btokenizer"),
    ("quant-dtype", r"quanti[sz]\w*|\b(?:fp8|nvfp4|mxfp4|int4|int8|awq|gptq|gguf|marlin|dtypes?)\b|bfloat16|float16"),
    ("weights", r"safetensors?|checkpoint|state_dict|\bshards?\b|loaded_weight|weight_loader|load_weights"),
    ("model-config", r"tokeniz\w+|config\.json|architecture|model.type|chat.template|rope_\w+|attention heads"),
    ("backend", r"\bbackends?\b|\bkernels?\b.{0,60}(?:support|implement|available)|flash_?attn|flashinfer|\bmla\b"),
    ("offline", r"hugging ?face|\bhttps?://|download|\bhub\b|connection (?:error|refused)|name resolution"),
    ("permission", r"permission|not permitted|access denied"),
    ("host", r"file system|no space|\bulimit\b|/dev/shm|/proc/|/sys/"),
    ("config", r"\barguments?\b|\boption\b|--[a-z][\w-]+|must be (?:one of|set|at least)|VLLM_[A-Z]|environment var"),
    ("abi", r"^(?:AttributeError|NameError)\b"),
    ("kernel-crash", r"\bCUDA error\b|\bcublas\w*|\bcudnn\w*|cuda graph"),
)
_FAMILIES = tuple((family, re.compile(pattern, re.IGNORECASE)) for family, pattern in _WORDS)
MAX_TEXT = 2000


def family_of(text: str) -> str | None:
    said = without_advice(without_dumps(text[:MAX_TEXT]))
    return next((family for family, words in _FAMILIES if words.search(said)), None)
