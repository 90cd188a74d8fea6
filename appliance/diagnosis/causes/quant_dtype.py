"""A quantisation or number format that this GPU, this build or this checkpoint does not have."""

from appliance.diagnosis.cause import Cause, halved

CAUSES = (
    Cause(
        family="quant-dtype",
        name="bfloat16-not-supported",
        signs=("bfloat16 is only supported on gpus", "bf16 is not supported on this", "does not support bfloat16"),
        details=r"compute capability (?P<capability>\d{1,9}\.\d{1,9})\b",
        summary="This GPU does not compute in bfloat16.",
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
        summary="The checkpoint, or the profile, names a number format that does not exist: {dtype}.",
        fix="Name the format in the profile, and mend torch_dtype (or dtype) in the model's config.json.",
        patch={"dtype": "bfloat16"},
    ),
    Cause(
        family="quant-dtype",
        name="float16-not-supported",
        signs=("does not support float16", "fp16 is not supported"),
        summary="This model cannot be computed in float16.",
        fix="Use bfloat16, or float32 where the GPU has none.",
        patch={"dtype": "bfloat16"},
    ),
    Cause(
        family="quant-dtype",
        name="dtype-not-for-quantisation",
        signs=("is not supported for quantization method",),
        pattern=r"(?P<dtype>[\w.]{1,80}) is not supported for quantization method "
            r"(?P<method>[\w-]{1,80}).{0,80}?\[torch\.(?P<on"
        r"ly>float16)\]",
        summary="The quantisation {method} does not compute in {dtype}, only in {only}.",
        fix="Use {only}.",
        patch={"dtype": "float16"},
    ),
    Cause(
        family="quant-dtype",
        name="dtype-not-for-quantisation",
        signs=("is not supported for quantization method",),
        pattern=r"(?P<dtype>[\w.]{1,80}) is not supported for quantization method (?P<method>[\w-]{1,80})",
        summary="The quantisation {method} does not compute in {dtype}.",
        fix="Leave dtype out, so that the checkpoint's own holds.",
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
        summary="This GPU, or this build, does not compute with the checkpoint's quantisation.",
        fix="Choose a checkpoint in a format that this GPU has (bf16, AWQ or GPTQ run on most; FP8 needs compute "
        "capability 8.9, FP4 10.0).",
        command="nvidia-smi --query-gpu=name,compute_cap --format=csv",
    ),
    Cause(
        family="quant-dtype",
        name="cache-dtype-not-supported",
        signs=("kv_cache_dtype", "kv-cache-dtype", "kv cache dtype", "fp8 kv cache", "fp8 kv-cache",
               "key cache of type", "fp8_e5m2"),
        pattern=r"(?:not support|unsupported|invalid|only support|requires|must be)",
        summary="The cache cannot be kept in the number format that the profile asks for.",
        fix="Leave kv-cache-dtype out.",
        patch={"kv-cache-dtype": "auto"},
    ),
    Cause(
        family="quant-dtype",
        name="quantised-shape-not-divisible",
        signs=("is not divisible by weight quantization block", "not aligned with the quantized weight shape",
               "is not divisible by min_thread", "min_thread_n", "min_thread_k", "not divisible by group_size",
               "block_n =", "block_k =", "divisible by the group size", "quantization block"),
        pattern=r"divisible|aligned|min_thread|block_[nk] =|too large tensor parallel",
        summary="Split over this many GPUs, a quantised weight no longer divides into its blocks.",
        fix="Use fewer GPUs (a smaller tensor-parallel-size), or spread the experts instead of splitting them "
        "(enable-expert-parallel).",
        patch={"tensor-parallel-size": halved("tensor-parallel-size")},
    ),
    Cause(
        family="quant-dtype",
        name="quantisation-mismatch",
        signs=("does not match the quantization method specified", "quantization method specified in the model config"),
        details=r"model config \((?P<checkpoint>[\w-]{1,80})\)",
        summary="The profile names another quantisation than the checkpoint's ({checkpoint}).",
        fix="Leave the quantisation out: the checkpoint says it.",
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
        summary="This build does not have the checkpoint's quantisation, or the checkpoint does not describe it as "
        "expected.",
        fix="Choose a checkpoint whose quantisation the engine knows, or an image that has the library for it.",
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
        summary="Two tensors that are computed together have different number formats, or one that the kernel does "
        "not take.",
        fix="Leave dtype and kv-cache-dtype out, so that the checkpoint's own hold.",
        patch={"dtype": "auto", "kv-cache-dtype": "auto"},
    ),
)  # fmt: skip
