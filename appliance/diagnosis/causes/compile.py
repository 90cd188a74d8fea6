"""torch.compile, and the caches of compiled graphs."""

from appliance.diagnosis.cause import Cause

_CLEAR = "rm -rf ~/.cache/vllm/torch_compile_cache ~/.triton/cache /tmp/torchinductor_$USER"

_FORBIDDEN = (
    "What a launch of this profile compiles can be carried in a cache pack: allow it once, then run the command."
)

CAUSES = (
    Cause(
        family="compile",
        name="jit-forbidden",
        signs=("compilationforbidden", "compilationforbiddenerror"),
        pattern=r"CompilationForbidden(?:Error)?: (?P<compiler>[^\s:]{1,40}+) was to be run for "
            r"(?P<kernel>[^\n:]{1,200}+)",
        summary="vLLM was about to run {compiler} for {kernel}, and the profile forbids compiling.",
        fix=_FORBIDDEN,
        patch={"jit": "allow"},
        command="ingot cache pack",
    ),
    Cause(
        family="compile",
        name="jit-forbidden",
        signs=("compilationforbiddenerror",),
        pattern=r"CompilationForbiddenError: (?P<compiler>[^\s:]{1,40}+) runs as process",
        summary="vLLM ran {compiler}, and the profile forbids compiling.",
        fix=_FORBIDDEN,
        patch={"jit": "allow"},
        command="ingot cache pack",
    ),
    Cause(
        family="compile",
        name="jit-unguarded",
        signs=("compilationforbiddenerror",),
        pattern=r"CompilationForbiddenError: vLLM's Python (?:in process \d{1,10} )?"
        r"did not load what refuses to compile",
        summary="The profile forbids compiling, and vLLM's Python ignores PYTHONPATH, so that nothing would refuse it.",
        fix="Let the command in INGOT_VLLM keep PYTHONPATH and run Python without -I, -E or -S; or allow compiling.",
        patch={"jit": "allow"},
    ),
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
