"""No backend, or not the forced one, can serve an operation here."""

from appliance.diagnosis.cause import Cause

_AUTO = {"backends": None}

CAUSES = (
    Cause(
        family="backend",
        name="no-backend-for-experts",
        signs=("moe backend", "no moe backend", "fused moe", "fused_moe", "moe kernel", "moe runner"),
        pattern=r"(?:no .{0,60}backend supports|not support|no valid|not available|unsupported|cannot be used"
        r"|no suitable)",
        summary="No backend for mixtures of experts serves this checkpoint's format on this GPU.",
        fix="Take the choice of the backend back, or choose a checkpoint in another format (bf16 or FP8).",
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
        summary="No attention backend, or not the one that was forced, serves this model on this GPU.",
        fix="Let the engine choose the attention backend by itself.",
        patch={"backends.attention": "auto"},
    ),
    Cause(
        family="backend",
        name="head-size-not-supported",
        signs=("head size", "head_size", "head dim", "head_dim", "headdim", "head dimension"),
        pattern=r"not support|unsupported|only support|supported head|must be|invalid|exceed",
        summary="The attention backend does not have this model's head size.",
        fix="Let the engine choose the attention backend by itself.",
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
        summary="A backend that the profile or the model asks for cannot be used here.",
        fix="Take the choice of the backend back, so that the engine takes one that this GPU and this image have.",
        patch=_AUTO,
    ),
    Cause(
        family="backend",
        name="op-not-for-this-device",
        signs=("with arguments from the", "not implemented for the device", "is not currently implemented for the"),
        details=r"Could not run '(?P<op>[^']{1,80})' with arguments from the '(?P<device>\w{1,60})'",
        summary="An operation does not exist for the device that it is to run on ({op}, {device}).",
        fix="Let the engine choose its backends by itself, or run on a device that this build has kernels for.",
        patch=_AUTO,
    ),
    Cause(
        family="backend",
        name="cache-transfer",
        signs=("nixlbackenderror", "nixl_err", "ucx error"),
        summary="NIXL, which hands the cache from one engine to another, could not use its transport (UCX).",
        fix="Check that UCX has its transports for CUDA and sees the network's devices (UCX_TLS and UCX_NET_DEVICES "
        "choose them), or leave the connector for the cache out.",
        command="ucx_info -d | grep -i -e transport -e device",
        vague=True,
    ),
    Cause(
        family="backend",
        name="not-implemented",
        signs=("no operator found", "notimplementederror", "no suitable kernel", "no kernel found",
               "no available kernel"),
        summary="What the model asks for is not implemented in the backend that is to serve it.",
        fix="Let the engine choose its backends by itself, or use a newer release of it.",
        patch=_AUTO,
        vague=True,
    ),
    Cause(
        family="backend",
        name="deepep-needs-its-topology",
        signs=("too many blocks in cooperative launch",),
        summary="The communication library of expert parallelism cannot run in this setting on these GPUs.",
        fix="Do without expert parallelism over it (DeepEP), or with smaller batches in CUDA graphs.",
        patch={"vllm.extra-args.enable-expert-parallel": None},
    ),
)  # fmt: skip
