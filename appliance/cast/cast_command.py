"""`ingot cast`: every kernel for one architecture, compiled on a machine that needs no GPU."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import click

from appliance import __version__
from appliance.cast.models import profile_and_context
from appliance.cast.progress import Progress
from appliance.checkpoint.errors import CheckpointError
from appliance.home import Home
from appliance.profile.chosen import NoSuchProfileError
from appliance.profile.schema import ProfileError
from kernels.cast import build, flashinfer, manifest, plan
from kernels.cast.architectures import ARCHITECTURES, architecture_named
from kernels.cast.errors import CastError
from kernels.cast.manifest import Manifest

INTERRUPTED = 130


@click.command()
@click.option("--arch", required=True, metavar="|".join(ARCHITECTURES), help="The GPU's architecture.")
@click.option(
    "--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="The cast's folder; it is made."
)
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    metavar="PROFILE",
    help="Cast only what this profile's model needs: a file, or the active profile's name. May be given several times.",
)
@click.option("--triton-only", is_flag=True, help="Leave out FlashInfer's modules, which take minutes each.")
@click.option("--jobs", type=click.IntRange(min=1), help="Compilers at once; without it, one a processor.")
def cast(arch: str, out: Path, profiles: tuple[str, ...], triton_only: bool, jobs: int | None) -> None:
    """Compile every kernel that the engine may launch, for one architecture.

    Needs no GPU. What was compiled is kept when it is interrupted: run it again. Exits with 1 when a kernel could not
    be compiled.
    """
    with _told(out.absolute()):
        architecture = architecture_named(arch)
        home = Home.from_environment()
        models = [profile_and_context(source, home, architecture) for source in profiles]
        contexts = tuple(context for _, context in models)
        with_flashinfer = flashinfer.installed() is not None and not triton_only
        ordered = build.Order(
            architecture=architecture,
            variants=plan.triton_variants(architecture.number, contexts),
            modules=flashinfer.planned(architecture.number, contexts) if with_flashinfer else (),
            folder=out.absolute(),
            ingot=__version__,
            models=tuple(name for name, _ in models),
            profiles=tuple(str(Path(source).absolute()) if Path(source).exists() else source for source in profiles),
            triton_only=triton_only,
            jobs=jobs or len(os.sched_getaffinity(0)),
        )
        order = build.extending(ordered)
        if not triton_only and not with_flashinfer:
            click.echo("FlashInfer is not installed here: a cast without its modules.", err=True)
        with Progress(order) as progress:
            outcome = build.build(order, progress)
    for name, why in outcome.failed.items():
        click.echo(f"{name} could not be compiled: {why}", err=True)
    if outcome.manifest is None:
        state = "the cast that it was" if (out / manifest.NAME).exists() else "no cast yet"
        _refuse(
            f"{len(outcome.failed)} of {len(order.variants)} kernels could not be compiled, and {out} is {state}. "
            "The others are kept: run the command again once these can be."
        )
    for variant in outcome.manifest.spilling:
        click.echo(
            f"Warning: {variant.name} spills registers: {variant.stack} bytes per thread are in local memory, and "
            f"{manifest.MOST_STACK} are the limit. It is correct, but slow; another tile may avoid it.",
            err=True,
        )
    click.echo(_summary(outcome.manifest, outcome.kept, out))


def _summary(manifest: Manifest, kept: int, out: Path) -> str:
    modules = f" and {len(manifest.flashinfer)} FlashInfer modules" if manifest.flashinfer else ""
    before = f" {kept} of the kernels were there before." if kept else ""
    return (
        f"{out} holds {len(manifest.variants)} kernels{modules} for {manifest.architecture}: "
        f"{manifest.size / 1e6:.1f} MB in {manifest.seconds:.0f} s.{before}"
    )


@contextmanager
def _told(out: Path) -> Iterator[None]:
    """Whatever a user can cause ends in a sentence, not in a traceback."""
    terminate = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the workers end with this
    try:
        yield
    except NoSuchProfileError as error:
        raise click.UsageError(str(error)) from error
    except ProfileError as error:
        _refuse("\n".join(f"{problem.message} {problem.remedy}" for problem in error.problems))
    except CheckpointError as error:
        _refuse(str(error))
    except CastError as error:
        _refuse(str(error))
    except OSError as error:
        place = Path(error.filename or out).absolute()
        if out == place or out in place.parents or place in out.parents:
            _refuse(f"{place} cannot be written: {error.strerror}. Name another folder with --out.")
        _refuse(f"{place} cannot be used: {error.strerror}. Let this user use it, and run the command again.")
    except KeyboardInterrupt:
        click.echo("Interrupted. What is compiled is kept: run the command again to go on.", err=True)
        sys.exit(INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, terminate)


def _refuse(message: str) -> NoReturn:
    click.echo(message, err=True)
    sys.exit(1)
