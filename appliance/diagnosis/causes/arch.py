"""A binary, a kernel or a cast does not cover this GPU's architecture."""

from appliance.diagnosis.cause import Cause

CAUSES = (
    Cause(
        family="arch",
        name="no-kernel-image",
        pattern=r"no kernel image is available|(sm_\d+|capability).{0,80}is not compatible with the current PyTorch",
        summary="This build has no code for this GPU's architecture.",
        fix="Run the image that was built for this GPU's architecture.",
        command="nvidia-smi --query-gpu=name,compute_cap --format=csv",
    ),
    Cause(
        family="arch",
        name="kernel-not-cast",
        pattern=r"NotCast: (?P<op>\w+) needs (the kernel|FlashInfer's module) (?P<kernel>\w+)[^\n]* on "
        r"(?P<architecture>sm_\d+),[^\n]*\. Cast it: (?P<command>ingot cast [^\n]+)",
        summary="The cast lacks a kernel that {op} needs on {architecture}: {kernel}.",
        fix="Cast again into the same folder, which keeps what is there, and start the engine again.",
        command="{command}",
    ),
    Cause(
        family="arch",
        name="kernel-arguments-not-cast",
        pattern=r"NotCast: (?P<op>\w+) needs the kernel [^\n]* no kernel is cast for: (?P<why>[^\n]*)\. This",
        summary="The engine called {op} with arguments that no kernel is cast for: {why}.",
        fix="Send this launch's log to support: the engine is not meant to do this.",
    ),
    Cause(
        family="arch",
        name="cast-unusable",
        pattern=r"CastError: (?P<why>[^\n]+?)\.(?:\s|$)",
        summary="The engine could not run from its cast: {why}.",
        fix="Prove the cast, and cast it again where that fails.",
        command="ingot verify",
    ),
)
