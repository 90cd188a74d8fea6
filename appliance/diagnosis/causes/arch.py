"""A binary or kernel does not cover this GPU's architecture."""

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
)
