"""torch.compile, and the caches of compiled graphs."""

from appliance.diagnosis.cause import Cause

_CLEAR = "rm -rf ~/.cache/vllm/torch_compile_cache ~/.triton/cache /tmp/torchinductor_$USER"

CAUSES = (
    Cause(
        family="compile",
        name="compile-cache",
        signs=("hash of the compiled graph", "torch_compile_cache", "torch_aot_compile", "compiled artifact",
               "compile cache", "aot compile", "aot compiled", "aot compilation", "inductor_cache", "fxgraphcache",
               "standalone_compile", "torchinductor_", "cached artifact"),
        pattern=r"(?:fail|assert|error|corrupt|missing|mismatch|not found|no such file|invalid|truncated|eof|cannot)",
        summary="The torch.compile cache could not be read or written.",
        fix="Delete the cache, or run without torch.compile.",
        command=_CLEAR,
    ),
    Cause(
        family="compile",
        name="compile-failed",
        signs=("backendcompilerfailed", "inductorerror", "loweringexception", "torch._dynamo", "torch._inductor",
               "torch dynamo", "torchruntimeerror", "constraintviolationerror", "internaltorchdynamoerror", "inductor",
               "graph break", "torch.compile", "userererror", "data-dependent"),
        summary="torch.compile failed on this model.",
        fix="Run without torch.compile.",
        patch={"enforce-eager": True},
        vague=True,
    ),
    Cause(
        family="compile",
        name="compile-failed",
        signs=(),
        where=r"(?:torch/_(?:inductor|dynamo|functorch)|vllm/compilation)/[^\n]{0,200}$",
        summary="torch.compile failed on this model.",
        fix="Run without torch.compile.",
        patch={"enforce-eager": True},
        vague=True,
    ),
)  # fmt: skip
