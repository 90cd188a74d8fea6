"""MIG slices: their identifiers, and what cannot be done across them."""

from appliance.diagnosis.cause import Cause

CAUSES = (
    Cause(
        family="mig",
        name="mig-uuid-not-understood",
        signs=("invalid literal for int() with base 10",),
        pattern=r"base 10: '(?P<device>MIG-[^']{1,80})'",
        summary="The engine reads CUDA_VISIBLE_DEVICES as numbers and does not understand the MIG slice {device}.",
        fix="Start it in a container that has only this slice, with CUDA_VISIBLE_DEVICES=0, or use an engine that "
        "takes UUIDs, as the native one does.",
        patch={"engine": "native"},
        command="nvidia-smi -L",
    ),
    Cause(
        family="mig",
        name="gpu-uuid-not-understood",
        signs=("invalid literal for int() with base 10",),
        pattern=r"base 10: '(?P<device>GPU-[^']{1,80})'",
        summary="The engine reads CUDA_VISIBLE_DEVICES as numbers and does not understand {device}.",
        fix="Name the GPU by its index, or use an engine that takes UUIDs, as the native one does.",
        patch={"engine": "native"},
        command="nvidia-smi -L",
    ),
    Cause(
        family="mig",
        name="mig-slice-unknown",
        signs=("unknown device", "no such device", "mig-", "nvidia.com/mig", "mig device", "mig instance", "mig mode"),
        pattern=r"MIG-\S{0,80}:? (?:unknown|not found|invalid)|(?:unknown|invalid|no such|unresolvable"
        r"|could not find).{0,80}\bMIG\b|nvidia\.com/mig|MIG (?:device|instance|mode).{0,80}(?:not (?:found|supported"
        r"|enabled|available)|unknown|invalid|fail|no )|no MIG",
        summary="The MIG slice that was asked for is not there.",
        fix="List the slices and name one that exists; after a restart of the machine or a change of the MIG layout "
        "the UUIDs are new.",
        patch={"device": "auto"},
        command="nvidia-smi -L",
        line=True,
    ),
    Cause(
        family="mig",
        name="mig-no-nvml-figures",
        signs=("nvmlerror_notsupported", "nvmlerror_nopermission", "nvmlerror_insufficientpermissions"),
        summary="NVML does not answer for this device: a MIG slice, or one without the right to ask.",
        fix="Name the slice by its UUID, and give the container the whole set of driver capabilities "
        "(NVIDIA_DRIVER_CAPABILITIES=all).",
        command="nvidia-smi -L",
    ),
)  # fmt: skip
