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
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The cast's folder, created if needed.",
)
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    metavar="PROFILE",
    help="Cast only the kernels for this profile's model: a file, or the active profile's name. Repeatable.",
)
@click.option("--triton-only", is_flag=True, help="Skip FlashInfer's modules, which take minutes each.")
@click.option("--jobs", type=click.IntRange(min=1), help="Compilers to run at once. [default: one per processor]")
def cast(arch: str, out: Path, profiles: tuple[str, ...], triton_only: bool, jobs: int | None) -> None:
    """Compile every kernel the engine may launch, for one GPU architecture.

    Needs no GPU. If it is interrupted, run it again: finished kernels are kept. Exits with 1 if a kernel does not
    compile.
    """
    with _errors_as_messages(out.absolute()):
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
            click.echo("FlashInfer is not installed: casting without its modules.", err=True)
        with Progress(order) as progress:
            outcome = build.build(order, progress)
    for name, why in outcome.failed.items():
        click.echo(f"{name} did not compile: {why}", err=True)
    if outcome.manifest is None:
        state = "still holds the previous cast" if (out / manifest.NAME).exists() else "is not a complete cast yet"
        _refuse(
            f"{len(outcome.failed):,} of {len(order.variants):,} kernels did not compile; {out} {state}. "
            "The others are kept: fix the cause above and run the command again."
        )
    for variant in outcome.manifest.spilling:
        click.echo(
            f"Warning: {variant.name} spills registers: {variant.stack:,} bytes per thread in local memory "
            f"(limit {manifest.MOST_STACK}). Its results are correct but slow; a smaller tile may avoid this.",
            err=True,
        )
    click.echo(_summary(outcome.manifest, outcome.kept, out))


def _summary(manifest: Manifest, kept: int, out: Path) -> str:
    modules = f" and {len(manifest.flashinfer)} FlashInfer modules" if manifest.flashinfer else ""
    before = f" {kept:,} kernels were already there." if kept else ""
    return (
        f"{out} holds {len(manifest.variants):,} kernels{modules} for {manifest.architecture}: "
        f"{manifest.size / 1e6:.1f} MB, compiled in {manifest.seconds:.0f} s.{before}"
    )


@contextmanager
def _errors_as_messages(out: Path) -> Iterator[None]:
    """Errors a user can cause end with a message instead of a traceback."""
    terminate = signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C, so that the workers end too
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
            _refuse(f"Cannot write {place}: {error.strerror}. Choose another folder with --out.")
        _refuse(f"Cannot use {place}: {error.strerror}. Give this user access and run the command again.")
    except KeyboardInterrupt:
        click.echo("Interrupted. Finished kernels are kept: run the same command again to continue.", err=True)
        sys.exit(INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, terminate)


def _refuse(message: str) -> NoReturn:
    click.echo(message, err=True)
    sys.exit(1)
