"""A binary, kernel or cast does not support this GPU's (or CPU's) architecture."""

from appliance.diagnosis.cause import Cause

_CAPABILITY = "nvidia-smi --query-gpu=name,compute_cap --format=csv"

CAUSES = (
    Cause(
        family="arch",
        name="kernel-not-cast",
        signs=("notcast",),
        pattern=r"NotCast: (?P<op>\w{1,60}) needs (the kernel|FlashInfer's module) "
            r"(?P<kernel>\w{1,80}+)[^\n]{0,400} on "
        r"(?P<architecture>sm_\d{1,4}+),[^\n]{0,400}\. Cast it: (?P<command>ingot cast [^\n]{1,300})",
        summary="The cast has no kernel for {op} on {architecture}: {kernel}.",
        fix="Cast again into the same folder (existing kernels are kept), then start the engine again.",
        command="{command}",
    ),
    Cause(
        family="arch",
        name="kernel-arguments-not-cast",
        signs=("notcast",),
        pattern=r"NotCast: (?P<op>\w{1,60}) needs the kernel [^\n]{0,400} no kernel is cast for: "
            r"(?P<why>[^\n]{0,400})\. This",
        summary="The engine called {op} with arguments that no cast kernel covers: {why}.",
        fix="This is a fault in Ingot. Send this launch's log to support.",
    ),
    Cause(
        family="arch",
        name="cast-unusable",
        signs=("casterror",),
        pattern=r"CastError: (?P<why>[^\n]{1,400}?)\.(?:\s|$)",
        summary="The engine could not use its cast: {why}.",
        fix="Verify the cast. If that fails, cast again.",
        look="ingot verify",
    ),
    Cause(
        family="arch",
        name="no-kernel-image",
        signs=("no kernel image is available", "device kernel image is invalid", "cuda_error_no_binary_for_gpu",
               "cudaerrornokernelimagefordevice", "no binary for gpu", "invalid device function"),
        summary="This build does not support this GPU's architecture.",
        fix="Use the image built for this GPU's architecture.",
        look=_CAPABILITY,
    ),
    Cause(
        family="arch",
        name="kernel-not-for-gpu",
        signs=("unsupported architecture",),
        pattern=r"(?P<file>[\w-]{1,80}\.cuh?)\b",
        summary="A kernel ({file}) does not support this GPU's architecture.",
        fix="Let the engine choose its backends.",
        patch={"backends": None},
        look=_CAPABILITY,
    ),
    Cause(
        family="arch",
        name="torch-without-architecture",
        signs=("is not compatible with the current pytorch", "no longer supports this gpu"),
        details=r"cuda capability (?P<capability>sm_\d{1,9})",
        summary="This build of PyTorch does not support this GPU's architecture.",
        fix="Use the image built for this GPU's architecture.",
        look=_CAPABILITY,
        warning=True,
        line=True,
        vague=True,
    ),
    Cause(
        family="arch",
        name="shared-memory-of-the-gpu",
        signs=("out of resource: shared memory", "outofresources", "out of resource:"),
        details=r"Required: (?P<needed>\d{1,9}),? Hardware limit: (?P<limit>\d{1,9})",
        summary="A kernel needs more shared memory than this GPU has ({needed} of {limit} bytes).",
        fix="Let the engine choose another backend, or use an engine whose kernels are tuned for this GPU.",
        patch={"backends": None},
    ),
    Cause(
        family="arch",
        name="gpu-too-old",
        signs=("only supports ampere gpus", "ampere gpus or newer", "requires gpus with sm",
               "devices of cuda capability", "requires compute capability", "requires sm",
               "requires cuda compute capability", "compute capability >=", "compute capability of at least",
               "compute capability at least", "is not supported on sm", "only supported on sm",
               "only supported on hopper", "only supported on blackwell", "unsupported gpu arch",
               "not supported on this gpu", "unsupported sm", "unsupported architecture: sm",
               "not implemented for sm", "does not support sm", "cuda arch", "no compiled", "device capability"),
        pattern=r"^(?!.{0,200}bfloat16 is only supported)",
        summary="A kernel that the engine selected does not support this GPU.",
        fix="Let the engine choose its backends, or use the image built for this GPU's architecture.",
        patch={"backends": None},
        look=_CAPABILITY,
    ),
    Cause(
        family="arch",
        name="gpu-too-old",
        signs=("sm", "cc", "hopper", "blackwell", "ampere", "ada", "turing", "volta"),
        pattern=r"(?:\bsm[ _]?\d|\bcc ?\d|hopper|blackwell|ampere|\bada\b|turing|volta).{0,80}(?:support|requir|only"
        r"|need|implement)|(?:only|requires?|support|needs?|implement).{0,60}(?:\bsm[ _]?\d|\bcc ?\d|hopper"
        r"|blackwell|ampere|\bada\b|turing|volta)",
        summary="A kernel that the engine selected does not support this GPU.",
        fix="Let the engine choose its backends, or use the image built for this GPU's architecture.",
        patch={"backends": None},
        look=_CAPABILITY,
        vague=True,
    ),
    Cause(
        family="arch",
        name="cpu-architecture",
        signs=("exec format error", "no matching manifest for linux", "does not match the detected host platform"),
        summary="The program or image was built for another processor architecture.",
        fix="Use the image for this machine's architecture (amd64 or arm64).",
        look="uname -m",
        line=True,
        vague=True,
    ),
)  # fmt: skip
