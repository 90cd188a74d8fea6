"""`ingot verify`: a cast is complete and unchanged; on a GPU, every kernel is correct and nothing is compiled."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import click
import msgspec

from appliance import hardware
from appliance.cast import bystanders
from appliance.cast.proving import prove
from appliance.hardware.gpu import Gpu
from kernels.cast import check
from kernels.cast.errors import CastError
from kernels.cast.manifest import Manifest
from kernels.cast.setting import CAST
from kernels.cast.words import ForwardProof, OpProof

_SHOWN = 3  # problems per op


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` writes. `gpu` and `forward` are None without a GPU to launch on."""

    cast: str
    architecture: str
    files: int
    bytes: int
    ops: tuple[OpProof, ...]
    problems: tuple[str, ...]
    gpu: str | None
    forward: ForwardProof | None = None

    @property
    def good(self) -> bool:
        ran = self.gpu is None or (self.forward is not None and not self.forward.problems)
        return ran and not self.problems and not any(op.problems for op in self.ops)


@click.command()
@click.option(
    "--cast",
    "folder",
    envvar=CAST,
    type=click.Path(path_type=Path),
    help=f"The cast's folder. [default: ${CAST}]",
)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object, for programs.")
def verify(folder: Path | None, as_json: bool) -> None:
    """Prove that a cast is complete; on a GPU of its architecture, that every kernel is correct, that a model runs from
    it, and that nothing is compiled.

    Exits with 1 if anything is wrong.
    """
    if folder is None:
        raise click.UsageError(f"No cast given. Name its folder with --cast or in {CAST}.")
    folder = folder.absolute()
    try:
        manifest = check.read(folder)
        for problem in check.against_this_environment(manifest, os.environ):
            raise problem
    except CastError as error:
        _refuse(str(error))
    gpu = _gpu(manifest)
    verdict = _verdict(folder, manifest, gpu, quiet=as_json)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(verdict)).decode())
    else:
        _show(verdict)
    if not verdict.good:
        raise SystemExit(1)


def _verdict(folder: Path, manifest: Manifest, gpu: Gpu | None, *, quiet: bool) -> Verdict:
    problems = [f"{text}." for text in check.changed_files(manifest, folder)]
    ops: list[OpProof] = []
    forward: ForwardProof | None = None
    if not problems:
        before = bystanders.snapshot(folder)
        for proof in prove(folder, manifest, gpu):
            if isinstance(proof, list):
                problems += proof
                continue
            if isinstance(proof, OpProof):
                ops.append(proof)
            else:
                forward = proof
            if not quiet:
                click.echo(_line(proof))
        problems += bystanders.differences(before, bystanders.snapshot(folder))
    return Verdict(
        cast=str(folder),
        architecture=manifest.architecture,
        files=len(manifest.files),
        bytes=manifest.size,
        ops=tuple(ops),
        problems=tuple(problems),
        gpu=str(gpu) if gpu else None,
        forward=forward,
    )


def _gpu(manifest: Manifest) -> Gpu | None:
    """The first GPU of the cast's architecture."""
    found = hardware.inventory().gpus
    return next((gpu for gpu in found if "sm_{}{}".format(*gpu.compute_capability) == manifest.architecture), None)


def _line(proof: OpProof | ForwardProof) -> str:
    error = "" if proof.error is None else f"   largest error {proof.error:.1e}, tolerance {proof.tolerance:.0e}"
    if isinstance(proof, ForwardProof):
        return _with_problems(
            f"{'forward pass':18} {proof.tokens:4} tokens of the bundled model{error}", proof.problems
        )
    verb = "found" if proof.error is None else "launched"
    shown = list(proof.problems[:_SHOWN])
    if len(proof.problems) > _SHOWN:
        shown.append(f"and {len(proof.problems) - _SHOWN:,} more; --json lists them all")
    return _with_problems(f"{proof.op:20} {proof.proven:4} of {proof.variants:4} kernels {verb}{error}", shown)


def _with_problems(line: str, problems: Iterable[str]) -> str:
    return "\n    ".join((line, *problems))


def _show(verdict: Verdict) -> None:
    for problem in verdict.problems:
        click.echo(problem)
    variants = sum(op.variants for op in verdict.ops)
    cast = f"{verdict.cast} ({verdict.architecture})"
    if not verdict.good:
        click.echo(f"NOT PROVEN: {cast}. The problems are listed above.")
    elif verdict.gpu:
        click.echo(
            f"PROVEN: {cast}. All {variants:,} kernels were launched on {verdict.gpu} and agree with their references; "
            "a model ran from the cast; nothing was compiled."
        )
    else:
        click.echo(
            f"COMPLETE: {cast}. It has all {variants:,} kernels, and its {verdict.files:,} files are unchanged. They "
            "were not launched, since this machine has no GPU of this architecture."
        )


def _refuse(message: str) -> NoReturn:
    click.echo(message, err=True)
    raise SystemExit(1)
