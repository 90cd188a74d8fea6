"""The installed torch has code for this GPU generation, judging by the CUDA it was built with."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity
from kernels.cast.architectures import ARCHITECTURES

DROPPED = "https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/"
# The generations that a major version of CUDA no longer compiles for: all before these.
OLDEST = {13: (7, 5), 12: (5, 0)}
# The first CUDA that compiles for a generation; a GPU runs what was compiled for another of its own.
FIRST_CUDA = {
    generation: min(known.nvcc for known in ARCHITECTURES.values() if known.capability[0] == generation)
    for generation in {known.capability[0] for known in ARCHITECTURES.values()}
} | {11: (13, 0)}


def run(subject: Subject) -> Iterator[Finding]:
    torch, gpu = subject.packages.torch, subject.device.gpu
    if torch is None or torch.cuda is None or gpu is None:
        return
    words = f"torch {torch.version} is built with CUDA {'.'.join(map(str, torch.cuda))}"
    oldest, first = OLDEST.get(torch.cuda[0]), FIRST_CUDA.get(gpu.compute_capability[0])
    if oldest and gpu.compute_capability < oldest:
        why = f"{words}, which has no code for GPUs before sm_{oldest[0]}{oldest[1]}"
        fix = "Use an image with CUDA 12, a newer GPU, or the CPU."
    elif first and torch.cuda < first:
        why = f"{words}, which predates this GPU: it needs {first[0]}.{first[1]} or newer"
        fix = f"Install a torch built with CUDA {first[0]}.{first[1]} or newer, or use the image for this GPU."
    else:
        return
    yield Finding(
        id="gpu-not-covered",
        severity=Severity.ERROR,
        message=f'{gpu.name} is {gpu.architecture}, but {why}. It would fail with "no kernel image is available".',
        field="device",
        value=subject.profile.device,
        evidence=(words, DROPPED),
        fix=Fix(text=fix, patch={"device": "cpu"} if subject.traits.one_build else None),
    )
