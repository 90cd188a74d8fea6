"""The NVIDIA driver, or what connects a container to it."""

from appliance.diagnosis.cause import Cause

CAUSES = (
    Cause(
        family="driver",
        name="driver-too-old",
        pattern=r"driver (version )?(on your system )?is (insufficient|too old)(.{0,80}found version (?P<found>\d+))?",
        summary="The NVIDIA driver is older than what this build's CUDA needs.",
        fix="Install a newer NVIDIA driver on this machine, or run a build for an older CUDA.",
        command="nvidia-smi",
    ),
    Cause(
        family="driver",
        name="no-gpu-visible",
        pattern=r"Found no NVIDIA driver|No CUDA GPUs are available|no CUDA-capable device|libcuda\.so\.1: cannot open"
        r"|Torch not compiled with CUDA enabled|Failed to infer device type",
        summary="No NVIDIA GPU can be used from here.",
        fix="Check that nvidia-smi works in the same place (in a container: that it was started with access to the "
        "GPUs), or run the model on the processor.",
        patch={"device": "cpu"},
    ),
    Cause(
        family="driver",
        name="gpu-lost",
        pattern=r"GPU has fallen off the bus|CUDA error: (unknown error|unspecified launch failure|device.{0,20}lost)"
        r"|uncorrectable ECC error|system not yet initialized",
        summary="The GPU stopped answering the driver.",
        fix="Look for Xid lines in the kernel's log; a restart of the machine resets the GPU. If it comes back, the "
        "card, its power or its cooling is at fault.",
        command="dmesg | grep -i -e xid -e nvrm",
    ),
    Cause(
        family="driver",
        name="gpu-busy",
        pattern=r"devices? (is|are|\(s\) is/are) busy or unavailable|all CUDA-capable devices are busy",
        summary="The GPU is held exclusively by another process, or is in a compute mode that allows only one.",
        fix="End the process that holds the GPU (nvidia-smi lists them).",
        command="nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv",
    ),
)
