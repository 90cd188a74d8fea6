"""On a GPU every kernel that this model needs is cast, for this GPU and these versions; or compiling was asked for."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from appliance.cast.setting import CAST, JIT, cast_folder, may_compile
from appliance.hardware.gpu import Gpu
from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity
from kernels.cast import check, commands
from kernels.cast.architectures import ARCHITECTURES
from kernels.cast.errors import CastError


def run(subject: Subject) -> Iterator[Finding]:
    gpu, environ = subject.device.gpu, subject.context.environ
    if gpu is None or subject.profile.engine != "native":
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
    folder = cast_folder(environ)
    if folder is None:
        yield _missing(subject, gpu)
        return
    architecture = _architecture(gpu)
    try:
        manifest = check.read(folder)
    except CastError as error:
        yield _finding(error)
        return
    wrong = [*check.against_architecture(manifest, folder, architecture)]
    wrong += check.against_this_environment(manifest, environ)
    wrong += check.against_files(manifest, folder)  # 32 ms for 363 kernels
    wrong = wrong or [*check.against_needs(manifest, folder, subject.effective.selection, subject.effective.context)]
    yield from map(_finding, wrong)


def _missing(subject: Subject, gpu: Gpu) -> Finding:
    architecture = _architecture(gpu)
    jit = "or let the engine compile what it needs, with `--jit`"
    message = f"The kernels for this GPU ({architecture}) are not there: {CAST} names no cast."
    if architecture not in ARCHITECTURES:
        fix = Fix(text=f"There are casts for {', '.join(ARCHITECTURES)} only: use such a GPU, {jit}.")
    else:
        folder = subject.context.home.root / "casts" / architecture
        fix = Fix(
            text=f"Cast them, which takes minutes, and set {CAST}={shlex.quote(str(folder))}; {jit}.",
            command=commands.cast(architecture, folder),
        )
    return Finding(id="cast-missing", severity=Severity.ERROR, message=message, field=CAST, fix=fix)


def _architecture(gpu: Gpu) -> str:
    return "sm_{}{}".format(*gpu.compute_capability)


def _finding(error: CastError) -> Finding:
    return Finding(
        id=error.id,
        severity=Severity.ERROR,
        message=error.message,
        field=CAST,
        fix=Fix(text=error.remedy, command=error.command),
    )
