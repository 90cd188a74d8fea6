"""A kernel reads or writes where it must not, or native code crashes."""

from appliance.diagnosis.cause import Cause

_TRY = {"backends": None, "enforce-eager": True}

CAUSES = (
    Cause(
        family="kernel-crash",
        name="illegal-memory-access",
        signs=("illegal memory access", "misaligned address", "cuda_error_illegal_address", "cudaerrorillegaladdress",
               "invalid address space", "illegal address", "invalid program counter", "hardware stack error"),
        summary="A GPU kernel read or wrote memory that it must not.",
        fix="Let the engine choose its backends by itself, and run without CUDA graphs; with CUDA_LAUNCH_BLOCKING=1 "
        "the log "
        "names the kernel.",
        patch=_TRY,
        deadly=True,
    ),
    Cause(
        family="kernel-crash",
        name="device-assert",
        signs=("device-side assert triggered", "cuda_error_assert", "cudaerrorassert", "assertion `"),
        pattern=r"device-side assert|error_?assert|Assertion `[^`]{1,200}` failed",
        summary="A GPU kernel found an index or value that it must not get: often a token beyond the vocabulary.",
        fix="Check that tokenizer and weights are of the same model; run without CUDA graphs to see which kernel it "
        "is.",
        patch={"enforce-eager": True},
        deadly=True,
    ),
    Cause(
        family="kernel-crash",
        name="kernel-illegal-instruction",
        signs=("an illegal instruction was encountered", "cudaerrorillegalinstruction",
               "cuda_error_illegal_instruction"),
        summary="A GPU kernel holds an instruction that this GPU does not execute.",
        fix="Let the engine choose its backends by itself, or run the image that was built for this GPU's "
        "architecture.",
        patch=_TRY,
        deadly=True,
    ),
    Cause(
        family="kernel-crash",
        name="launch-failure",
        signs=("unspecified launch failure", "cuda_error_launch_failed", "the launch timed out and was terminated",
               "cudaerrorlaunchfailure", "cublas_status_execution_failed", "cublas_status_internal_error",
               "cudnn_status_execution_failed", "cudnn_status_internal_error", "cublas_status_not_initialized",
               "cublas_status_invalid_value", "cublas_status_not_supported", "cusparse_status"),
        summary="A GPU kernel failed while it ran.",
        fix="Let the engine choose its backends by itself, and run without CUDA graphs; look for Xid lines in the "
        "kernel's "
        "log as well.",
        patch=_TRY,
        command="dmesg -T | grep -i -e xid -e nvrm",
        deadly=True,
    ),
    Cause(
        family="kernel-crash",
        name="launch-refused",
        signs=("invalid configuration argument", "too many resources requested for launch",
               "invalid resource handle", "cooperative launch", "cuda error: invalid argument",
               "cuda_error_invalid_value", "cuda error: invalid value", "cuda error: invalid device pointer",
               "cluster misconfiguration", "failed with error invalid argument", "failed with error unspecified",
               "cutlass error", "error internal", "got cutlass error"),
        summary="A GPU kernel could not be launched with the shape that the engine gave it.",
        fix="Let the engine choose its backends by itself, with smaller batches or without CUDA graphs.",
        patch=_TRY,
    ),
    Cause(
        family="kernel-crash",
        name="graph-capture",
        signs=("when stream is capturing", "error during capture", "cudastreamcapturestatus", "stream capture",
               "unjoined work", "current stream is capturing", "during cuda graph capture", "during capture",
               "cudagraph capture"),
        pattern=r"not permitted|previous error|cannot call|invalidat|unjoined|fail|error|unsupported|must not",
        summary="A CUDA graph could not be captured: an operation in it may not be recorded.",
        fix="Run without CUDA graphs.",
        patch={"enforce-eager": True},
    ),
    Cause(
        family="kernel-crash",
        name="gpu-page-fault",
        signs=("xid",),
        pattern=r"Xid\b.{0,60}?: (?P<xid>13|31|32|43|45|68|69|109)\b",
        summary="The driver reports that a GPU kernel did what it must not (Xid {xid}).",
        fix="Let the engine choose its backends by itself, and run without CUDA graphs.",
        patch=_TRY,
        line=True,
        deadly=True,
    ),
    Cause(
        family="kernel-crash",
        name="illegal-instruction",
        signs=("illegal instruction", "sigill", "status=4/ill", "132"),
        pattern=r"illegal instruction|SIGILL|4/ILL|exit(?:ed)?(?: with)?(?: code| status)?:? 132\b",
        summary="The engine uses an instruction that this machine's processor does not have.",
        fix="Run it on a processor with the instructions it was built for (x86-64-v3, or ARMv8.2), or in a virtual "
        "machine that passes the host's processor through.",
        line=True,
        deadly=True,
    ),
    Cause(
        family="kernel-crash",
        name="segmentation-fault",
        signs=("segmentation fault", "sigsegv", "segfault", "fatal python error", "sigbus", "bus error",
               "status=11/segv", "core dumped", "139", "135", "floating point exception"),
        pattern=r"segmentation fault|SIGSEGV|segfault (?:encountered|at)|fatal python error: (?:bus|abort|floating)"
        r"|SIGBUS|11/SEGV"
        r"|core dumped|bus error|floating point exception|exit(?:ed)?(?: with)?(?: code| status)?:? 13[59]\b",
        summary="Native code in the engine crashed.",
        fix="Let the engine choose its backends by itself. If it happens again, send this launch's log to support.",
        patch={"backends": None},
        line=True,
        deadly=True,
        vague=True,
    ),
    Cause(
        family="kernel-crash",
        name="aborted",
        signs=("terminate called", "double free or corruption", "free(): invalid", "malloc(): ", "munmap_chunk()",
               "sigabrt", "corrupted size vs", "stack smashing detected", "status=6/abrt",
               "corrupted double-linked list", "pure virtual"),
        summary="Native code in the engine gave up.",
        fix="Let the engine choose its backends by itself. If it happens again, send this launch's log to support.",
        patch={"backends": None},
        line=True,
        deadly=True,
        vague=True,
    ),
    Cause(
        family="kernel-crash",
        name="graph-capture",
        signs=("capture cuda graph failed",),
        summary="CUDA graphs could not be captured.",
        fix="Run without CUDA graphs.",
        patch={"enforce-eager": True},
        vague=True,
    ),
)  # fmt: skip
