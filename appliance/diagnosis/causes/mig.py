"""MIG slices and their identifiers."""

from appliance.diagnosis.cause import Cause

CAUSES = (
    Cause(
        family="mig",
        name="mig-uuid-not-understood",
        signs=("invalid literal for int() with base 10",),
        pattern=r"base 10: '(?P<device>MIG-[^']{1,80})'",
        summary="The engine expects numbers in CUDA_VISIBLE_DEVICES and does not support the MIG slice {device}.",
        fix="Start it in a container that has only this slice, with CUDA_VISIBLE_DEVICES=0, or use an engine that "
        "supports UUIDs, such as the native one.",
        patch={"engine": "native"},
        look="nvidia-smi -L",
    ),
    Cause(
        family="mig",
        name="gpu-uuid-not-understood",
        signs=("invalid literal for int() with base 10",),
        pattern=r"base 10: '(?P<device>GPU-[^']{1,80})'",
        summary="The engine expects numbers in CUDA_VISIBLE_DEVICES and does not support {device}.",
        fix="Name the GPU by its index, or use an engine that supports UUIDs, such as the native one.",
        patch={"engine": "native"},
        look="nvidia-smi -L",
    ),
    Cause(
        family="mig",
        name="mig-slice-unknown",
        signs=("unknown device", "no such device", "mig-", "nvidia.com/mig", "mig device", "mig instance", "mig mode"),
        pattern=r"MIG-\S{0,80}:? (?:unknown|not found|invalid)|(?:unknown|invalid|no such|unresolvable"
        r"|could not find).{0,80}\bMIG\b|nvidia\.com/mig|MIG (?:device|instance|mode).{0,80}(?:not (?:found|supported"
        r"|enabled|available)|unknown|invalid|fail|no )|no MIG",
        summary="The requested MIG slice does not exist.",
        fix="List the slices and choose one that exists. After a restart or a change of the MIG layout, the UUIDs "
        "are new.",
        patch={"device": "auto"},
        look="nvidia-smi -L",
        line=True,
    ),
    Cause(
        family="mig",
        name="mig-no-nvml-figures",
        signs=("nvmlerror_notsupported", "nvmlerror_nopermission", "nvmlerror_insufficientpermissions"),
        summary="NVML does not report on this device: it is a MIG slice, or access is not permitted.",
        fix="Name the slice by its UUID, and give the container all driver capabilities "
        "(NVIDIA_DRIVER_CAPABILITIES=all).",
        look="nvidia-smi -L",
    ),
)  # fmt: skip
