"""Quantisations and data types that this GPU, build or checkpoint does not support."""

from appliance.diagnosis.cause import Cause, halved

CAUSES = (
    Cause(
        family="quant-dtype",
        name="bfloat16-not-supported",
        signs=("bfloat16 is only supported on gpus", "bf16 is not supported on this", "does not support bfloat16"),
        details=r"compute capability (?P<capability>\d{1,9}\.\d{1,9})\b",
        summary="This GPU does not support bfloat16.",
        fix="Use float16.",
        patch={"dtype": "float16"},
    ),
    Cause(
        family="quant-dtype",
        name="dtype-not-on-this-processor",
        signs=("path needs the cpu support",),
        pattern=r"\b(?P<dtype>bf16|fp16) path needs the cpu support (?P<flags>[\w, ]{1,80})",
        summary="This processor cannot rearrange weights in {dtype}: it lacks {flags}.",
        fix="Use float32.",
        patch={"dtype": "float32"},
    ),
    Cause(
        family="quant-dtype",
        name="unknown-dtype",
        signs=("module 'torch' has no attribute '", "unknown dtype"),
        pattern=r"(?:module 'torch' has no attribute|unknown dtype:?) '?(?P<dtype>b?float\w{0,60}|u?int\d{1,9}"
            r"|bf16|fp\d{1,9})\b",
        summary="The checkpoint or the profile names a data type that does not exist: {dtype}.",
        fix="Correct torch_dtype (or dtype) in the model's config.json: it is read before the profile's counts.",
    ),
    Cause(
        family="quant-dtype",
        name="float16-not-supported",
        signs=("does not support float16", "fp16 is not supported"),
        summary="This model does not support float16.",
        fix="Use bfloat16, or float32 where the GPU does not support it.",
        patch={"dtype": "bfloat16"},
    ),
    Cause(
        family="quant-dtype",
        name="dtype-not-for-quantisation",
        signs=("is not supported for quantization method",),
        pattern=r"(?P<dtype>[\w.]{1,80}) is not supported for quantization method "
            r"(?P<method>[\w-]{1,80}).{0,80}?\[torch\.(?P<on"
        r"ly>float16)\]",
        summary="{method} quantisation does not support {dtype}, only {only}.",
        fix="Use {only}.",
        patch={"dtype": "float16"},
    ),
    Cause(
        family="quant-dtype",
        name="dtype-not-for-quantisation",
        signs=("is not supported for quantization method",),
        pattern=r"(?P<dtype>[\w.]{1,80}) is not supported for quantization method (?P<method>[\w-]{1,80})",
        summary="{method} quantisation does not support {dtype}.",
        fix="Remove dtype to use the checkpoint's own.",
        patch={"dtype": "auto"},
    ),
    Cause(
        family="quant-dtype",
        name="quantisation-not-for-this-gpu",
        signs=("is not supported for the current gpu", "minimum capability", "quantization is not supported on",
               "quantization is currently not supported", "quantization is only supported",
               "not supported in this architecture", "supported fp8 dtypes", "fp8e4nv", "does not support fp8",
               "fp8 is not supported", "fp8 not supported", "fp4 is not supported", "does not support fp4", "mxfp4",
               "nvfp4 is not supported", "int4 is not supported"),
        pattern=r"not supported|minimum capability|only supported|unsupported|does(?: not|n't) support|not available"
        r"|requires",
        summary="This GPU or this build does not support the checkpoint's quantisation.",
        fix="Choose a checkpoint in a format that this GPU supports (bf16, AWQ and GPTQ run on most; FP8 needs "
        "compute capability 8.9, FP4 10.0).",
        look="nvidia-smi --query-gpu=name,compute_cap --format=csv",
    ),
    Cause(
        family="quant-dtype",
        name="cache-dtype-not-supported",
        signs=("kv_cache_dtype", "kv-cache-dtype", "kv cache dtype", "fp8 kv cache", "fp8 kv-cache",
               "key cache of type", "fp8_e5m2"),
        pattern=r"^(?!.{0,200}is not valid for this configuration).{0,400}?(?:not support|unsupported|invalid"
        r"|only support|requires|must be)",
        summary="The KV cache data type in the profile is not supported.",
        fix="Remove kv-cache-dtype.",
        patch={"kv-cache-dtype": "auto"},
    ),
    Cause(
        family="quant-dtype",
        name="quantised-shape-not-divisible",
        signs=("is not divisible by weight quantization block", "not aligned with the quantized weight shape",
               "is not divisible by min_thread", "min_thread_n", "min_thread_k", "not divisible by group_size",
               "block_n =", "block_k =", "divisible by the group size", "quantization block"),
        pattern=r"divisible|aligned|min_thread|block_[nk] =|too large tensor parallel",
        summary="Quantised weights cannot be split over this many GPUs: a block would be divided.",
        fix="Use fewer GPUs (a smaller tensor-parallel-size), or distribute whole experts (enable-expert-parallel).",
        patch={"tensor-parallel-size": halved("tensor-parallel-size")},
    ),
    Cause(
        family="quant-dtype",
        name="quantisation-mismatch",
        signs=("does not match the quantization method specified", "quantization method specified in the model config"),
        details=r"model config \((?P<checkpoint>[\w-]{1,80})\)",
        summary="The profile's quantisation differs from the checkpoint's ({checkpoint}).",
        fix="Remove the quantisation setting to use the checkpoint's own.",
        patch={"vllm.extra-args.quantization": None},
    ),
    Cause(
        family="quant-dtype",
        name="quantisation-unknown",
        signs=("unknown quantization method", "invalid quantization method", "unsupported quantization",
               "quantization config", "quantization method", "quant_method", "compressed-tensors",
               "cannot find the config file for", "quantize_config.json", "no compressed-tensors compatible scheme",
               "bitsandbytes", "auto_gptq", "autoawq", "gptqmodel", "modelopt", "fbgemm", "torchao", "quant_algo",
               "hf_quant_config"),
        pattern=r"unknown|invalid|unsupported|not (?:supported|found|available|installed|implemented)|cannot find"
        r"|please install|no compressed-tensors|requires|must be|no module named|only support|missing",
        summary="This build does not support the checkpoint's quantisation, or the checkpoint describes it "
        "incorrectly.",
        fix="Choose a checkpoint whose quantisation the engine supports, or an image that includes the library for "
        "it.",
    ),
    Cause(
        family="quant-dtype",
        name="dtypes-do-not-match",
        signs=("must have the same dtype", "to have the same dtype", "expected scalar type", "expected dtype",
               "mat1 and mat2 must", "query and key must have the same dtype", "unsupported dtype",
               "unsupported data type", "only support fp16 and bf16", "only support fp16", "invalid dtype",
               "unknown dtype", "not implemented for 'half'", "not implemented for 'float8",
               "not implemented for 'bfloat16'", "promotion for float8", "unsupported scalar type",
               "unsupported input type"),
        summary="Tensors used together have different data types, or one that the kernel does not support.",
        fix="Remove dtype and kv-cache-dtype to use the checkpoint's own.",
        patch={"dtype": "auto", "kv-cache-dtype": "auto"},
    ),
)  # fmt: skip
