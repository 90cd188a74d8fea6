"""On a GPU every kernel that this model needs is cast, for this GPU and these versions; or compiling was asked for."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from appliance.hardware.gpu import Gpu
from appliance.preflight.subject import Subject
from appliance.profile.active import read_active
from appliance.profile.schema import ProfileError
from appliance.protocol import Finding, Fix, Severity
from kernels.cast import check, commands
from kernels.cast.architectures import ARCHITECTURES
from kernels.cast.errors import CastError
from kernels.cast.setting import CAST, JIT, cast_folder, may_compile

CASTS, PROFILE = "ingot cast ", "--profile"


def run(subject: Subject) -> Iterator[Finding]:
    gpu, environ = subject.device.gpu, subject.context.environ
    if subject.profile.engine != "native":
        return
    if gpu is None:
        if cast_folder(environ) is not None and subject.profile.device == "auto":
            yield _without_gpu(subject)
        return
    if may_compile(environ):
        yield Finding(
            id="unsealed",
            severity=Severity.INFO,
            message="Kernels are compiled when they are first used: the engine is not sealed.",
            field=JIT,
            fix=Fix(text=f"For anything but development, cast them and set {CAST}."),
        )
        return
    folder, architecture = cast_folder(environ), gpu.architecture
    if architecture not in ARCHITECTURES:
        yield _without_casts(gpu, folder)
        return
    if folder is None:
        yield _missing(subject, gpu)
        return
    try:
        manifest = check.read(folder)
    except CastError as error:
        yield _finding(subject, error)
        return
    wrong = [*check.against_architecture(manifest, folder, architecture)]
    wrong += check.against_this_environment(manifest, environ)
    wrong += check.against_files(manifest, folder)  # 32 ms for 363 kernels
    wrong = wrong or [*check.against_needs(manifest, folder, subject.effective.selection, subject.effective.context)]
    yield from (_finding(subject, error) for error in wrong)


def _without_gpu(subject: Subject) -> Finding:
    """Whoever runs the image of a GPU means the GPU: served by the CPU, a model would only seem to be slow."""
    problem = subject.context.inventory.problem or "There is no NVIDIA driver here, or the container was given no GPU."
    return Finding(
        id="sealed-without-gpu",
        severity=Severity.ERROR,
        message=f"This engine is sealed to a cast for GPUs, and there is no GPU that it can use. {problem}",
        field="device",
        value=subject.profile.device,
        evidence=(f"{CAST}={cast_folder(subject.context.environ)}",),
        fix=Fix(
            text="Install the NVIDIA driver and NVIDIA's container toolkit on the machine, and give the container "
            "a GPU (compose.gpu.yaml); or run this profile on the CPU.",
            patch={"device": "cpu"},
        ),
    )


def _missing(subject: Subject, gpu: Gpu) -> Finding:
    folder = subject.context.home.root / "casts" / gpu.architecture
    return Finding(
        id="cast-missing",
        severity=Severity.ERROR,
        message=f"The kernels for this GPU ({gpu.architecture}) are not there: {CAST} names no cast.",
        field=CAST,
        fix=Fix(
            text=f"Cast them, which takes minutes, and set {CAST}={shlex.quote(str(folder))}; or let the engine "
            "compile what it needs, with `--jit`.",
            command=commands.cast(gpu.architecture, folder, _profiles(subject)),
        ),
    )


def _without_casts(gpu: Gpu, folder: Path | None) -> Finding:
    """There is nothing to cast: plain torch serves such a GPU, so far as torch covers it."""
    message = f"There are no kernels for {gpu.architecture}: every op runs in plain torch, which is slow."
    text = f"Use a GPU of {', '.join(ARCHITECTURES)}, or the vllm engine, where it is installed and still covers this."
    if folder is not None:
        message = f"{CAST} names a cast, and there are none for {gpu.architecture}."
        text = "Unset it: the model then runs in plain torch, which is slow."
    return Finding(
        id="gpu-without-kernels",
        severity=Severity.ERROR if folder is not None else Severity.WARNING,
        message=message,
        field=CAST if folder is not None else "device",
        value=None if folder is None else str(folder),
        fix=Fix(text=text, command=commands.unset([CAST]) if folder is not None else None),
    )


def _profiles(subject: Subject) -> tuple[str, ...]:
    """What a command may name this profile by, so that it casts what this model needs and no more."""
    context = subject.context
    if context.source is not None:
        return (context.source,)
    try:
        active = read_active(context.home)
    except ProfileError:
        return ()
    return (subject.profile.name,) if active is not None and active.document == context.document else ()


def _finding(subject: Subject, error: CastError) -> Finding:
    command = error.command
    if command is not None and command.startswith(CASTS) and PROFILE not in command:
        command = shlex.join([*shlex.split(command), *(w for name in _profiles(subject) for w in (PROFILE, name))])
    return Finding(
        id=error.id,
        severity=Severity.ERROR,
        message=error.message,
        field=CAST,
        fix=Fix(text=error.remedy, command=command),
    )
