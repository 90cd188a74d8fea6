"""On a GPU, every kernel the model needs is in the cast for this GPU and these versions, unless compiling was
asked for."""

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
    if gpu is None:
        if cast_folder(environ) is not None and subject.profile.device == "auto":
            yield _without_gpu(subject)
        return
    if may_compile(environ):
        if subject.profile.forbids_jit:
            yield _allowed_elsewhere()
            return
        yield Finding(
            id="unsealed",
            severity=Severity.INFO,
            message="The engine is not sealed: kernels are compiled on first use.",
            field=JIT,
            fix=Fix(text=f"Outside development, cast the kernels and set {CAST}."),
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
    """Whoever runs a GPU image means the GPU; on the CPU the model would just seem slow."""
    problem = subject.context.inventory.problem or "No NVIDIA driver was found, or the container has no GPU."
    return Finding(
        id="sealed-without-gpu",
        severity=Severity.ERROR,
        message=f"This engine is sealed to a GPU cast, but no usable GPU was found. {problem}",
        field="device",
        value=subject.profile.device,
        evidence=(f"{CAST}={cast_folder(subject.context.environ)}",),
        fix=Fix(
            text="Install the NVIDIA driver and the NVIDIA Container Toolkit on the host and give the container "
            "a GPU (compose.gpu.yaml), or run this profile on the CPU.",
            patch={"device": "cpu"},
        ),
    )


def _allowed_elsewhere() -> Finding:
    return Finding(
        id="jit-allowed-elsewhere",
        severity=Severity.ERROR,
        message=f"The profile forbids compiling while the engine runs, and {JIT} (or `--jit`) asks for it.",
        field="jit",
        value="forbid",
        fix=Fix(
            text=f"Unset {JIT}, so that the engine runs from its cast, or allow compiling in the profile.",
            command=commands.unset([JIT]),
        ),
    )


def _missing(subject: Subject, gpu: Gpu) -> Finding:
    folder = subject.context.home.root / "casts" / gpu.architecture
    return Finding(
        id="cast-missing",
        severity=Severity.ERROR,
        message=f"There are no kernels for this GPU ({gpu.architecture}): {CAST} is not set.",
        field=CAST,
        fix=Fix(
            text=f"Cast them, which takes minutes, and set {CAST}={shlex.quote(str(folder))}, or let the engine "
            "compile on demand with `--jit`.",
            command=commands.cast(gpu.architecture, folder, _profiles(subject)),
        ),
    )


def _without_casts(gpu: Gpu, folder: Path | None) -> Finding:
    """There is nothing to cast: plain torch serves such a GPU as far as torch supports it."""
    message = f"Ingot has no kernels for {gpu.architecture}. Every op runs in plain torch, which is slow."
    text = f"Use a GPU of {', '.join(ARCHITECTURES)}, or a vLLM that still supports this one."
    if folder is not None:
        message = f"{CAST} is set, but {gpu.architecture} GPUs have no casts."
        text = "Unset it. The model then runs in plain torch, which is slow."
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
