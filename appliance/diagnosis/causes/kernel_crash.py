"""A kernel reads or writes where it must not, or native code crashes."""

from appliance.diagnosis.cause import Cause

CAUSES = (
    Cause(
        family="kernel-crash",
        name="illegal-memory-access",
        pattern=r"illegal memory access|misaligned address|device-side assert triggered",
        summary="A GPU kernel read or wrote memory that it must not.",
        fix="Let the engine choose its backends by itself, and run without CUDA graphs to see which kernel it is.",
        patch={"backends": None, "enforce-eager": True},
    ),
    Cause(
        family="kernel-crash",
        name="illegal-instruction",
        pattern=r"Illegal instruction|SIGILL",
        summary="The engine uses an instruction that this machine's processor does not have.",
        fix="Run it on a processor with the instructions it was built for (x86-64-v3, or ARMv8.2), or in a virtual "
        "machine that passes the host's processor through.",
    ),
    Cause(
        family="kernel-crash",
        name="segmentation-fault",
        pattern=r"Segmentation fault|SIGSEGV|Fatal Python error: (Bus error|Aborted)|SIGBUS",
        summary="Native code in the engine crashed.",
        fix="Let the engine choose its backends by itself. If it happens again, send this launch's log to support.",
        patch={"backends": None},
    ),
)
