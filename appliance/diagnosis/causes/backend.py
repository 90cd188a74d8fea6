"""No backend, or not the chosen one, supports an operation here."""

from appliance.diagnosis.cause import Cause

_AUTO = {"backends": None}

_REFUSED = r"(?:does not support the deployment|is not supported for)"
# Before all that blames a library for a word in their names. vLLM says them of one backend, which somebody has chosen.
CHOSEN = (
    Cause(
        family="backend",
        name="chosen-backend-for-experts",
        signs=("moe backend", "moe_backend"),
        pattern=rf"moe[ _]backend[ =]'?(?P<backend>(?:BATCHED_)?DEEP_?GEMM)'? {_REFUSED}",
        summary="The backend {backend}, which was chosen for the experts, is not installed or does not fit this model.",
        fix="Let the engine choose the backend, and turn DeepGEMM off.",
        patch={"backends.moe": "auto", "vllm.environment.VLLM_USE_DEEP_GEMM": "0"},
    ),
    Cause(
        family="backend",
        name="chosen-backend-for-experts",
        signs=("moe backend", "moe_backend"),
        pattern=rf"moe[ _]backend[ =]'?(?P<backend>[A-Za-z0-9_]{{1,40}}(?: [A-Za-z0-9_]{{1,40}}){{0,3}})'? {_REFUSED}",
        summary="The backend {backend}, which was chosen for the experts, is not installed or does not fit this model.",
        fix="Let the engine choose the backend.",
        patch={"backends.moe": "auto"},
    ),
)
CAUSES = (
    Cause(
        family="backend",
        name="no-backend-for-experts",
        signs=("moe backend", "no moe backend", "fused moe", "fused_moe", "moe kernel", "moe runner"),
        pattern=r"(?:no .{0,60}backend supports|not support|no valid|not available|unsupported|cannot be used"
        r"|no suitable)",
        summary="No mixture-of-experts backend supports this checkpoint's format on this GPU.",
        fix="Let the engine choose the backend, or use a checkpoint in another format (bf16 or FP8).",
        patch={"backends.moe": "auto"},
    ),
    Cause(
        family="backend",
        name="no-attention-backend",
        signs=("no valid attention backend", "no attention backend", "not a valid attention backend",
               "attention backend", "is not valid for this configuration", "invalid attention backend",
               "unknown attention backend", "attn_backend", "attention_backend", "attention_backend_"),
        pattern=r"(?:no (?:valid )?attention|not (?:a )?valid|invalid|unknown|not support|unsupported|unrecognized"
        r"|not available|requires|cannot be used|only support|must be)",
        summary="No attention backend (or not the one that was chosen) supports this model on this GPU.",
        fix="Let the engine choose the attention backend.",
        patch={"backends.attention": "auto"},
    ),
    Cause(
        family="backend",
        name="head-size-not-supported",
        signs=("head size", "head_size", "head dim", "head_dim", "headdim", "head dimension"),
        pattern=r"not support|unsupported|only support|supported head|must be|invalid|exceed",
        summary="The attention backend does not support this model's head size.",
        fix="Let the engine choose the attention backend.",
        patch={"backends.attention": "auto"},
    ),
    Cause(
        family="backend",
        name="backend-not-available",
        signs=("flashmla", "flash_mla", "flashinfer", "flashattention", "flash attention", "flash_attn",
               "flash-attn", "xformers", "trtllm", "cutlass", "aiter", "tilelang", "flashattn", "fa3", "fa4",
               "mooncake", "deepep", "deep_ep", "pplx", "nixl", "marlin", "machete", "triton attention"),
        pattern=r"not (?:supported|available|installed|implemented|found|compatible)|unsupported|is required|requires"
        r"|unavailable|not support|only support|please install|failed to import|cannot be used|no module named"
        r"|missing [\w-]{1,40} kernel",
        summary="A backend that the profile or the model asks for is not available here.",
        fix="Let the engine choose a backend that this GPU and this image support.",
        patch=_AUTO,
        broad=True,
    ),
    Cause(
        family="backend",
        name="op-not-for-this-device",
        signs=("with arguments from the", "not implemented for the device", "is not currently implemented for the"),
        details=r"Could not run '(?P<op>[^']{1,80})' with arguments from the '(?P<device>\w{1,60})'",
        summary="An operation is not available on the device it should run on ({op}, {device}).",
        fix="Let the engine choose its backends, or use a device that this build supports.",
        patch=_AUTO,
    ),
    Cause(
        family="abi",
        name="cache-transfer-missing",
        signs=("nixl is not available",),
        pattern=r"(?P<package>NIXL) is not available",
        summary="{package}, which transfers the KV cache between engines, cannot be imported: it is not installed "
        "for this Python, or a library that it needs is missing.",
        fix="Import nixl with the engine's own Python: the error says what is missing. Without a KV cache connector "
        "(kv-transfer-config) the engine does not need it.",
        look="python -c 'import nixl._api'",
    ),
    Cause(
        family="backend",
        name="cache-transfer",
        signs=("nixlbackenderror", "nixl_err", "ucx error"),
        summary="NIXL, which transfers the KV cache between engines, could not use its transport (UCX).",
        fix="Check that UCX has CUDA support and sees the network devices (UCX_TLS and UCX_NET_DEVICES select "
        "them), or remove the KV cache connector.",
        look="ucx_info -d | grep -i -e transport -e device",
        vague=True,
    ),
    Cause(
        family="backend",
        name="not-implemented",
        signs=("no operator found", "notimplementederror", "no suitable kernel", "no kernel found",
               "no available kernel"),
        summary="The backend does not implement an operation that the model needs.",
        fix="Let the engine choose its backends, or use a newer release of the engine.",
        patch=_AUTO,
        vague=True,
    ),
    Cause(
        family="backend",
        name="deepep-needs-its-topology",
        signs=("too many blocks in cooperative launch",),
        summary="The expert-parallel communication library (DeepEP) cannot run with these settings on these GPUs.",
        fix="Turn expert parallelism off, or use smaller CUDA graph batches.",
        patch={"vllm.extra-args.enable-expert-parallel": None},
    ),
)  # fmt: skip
