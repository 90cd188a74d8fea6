"""`python -m kernels.cast.worker --arch sm_90 --out DIR --scratch DIR`: compiles variants, one line in and one out.

A process of its own, because a compiler that crashes takes its process with it. It ends when its input ends.
"""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any

import msgspec
from triton import knobs

from kernels.cast import cubin, host_compiler, pinning, stub_driver
from kernels.cast.architectures import architecture_named
from kernels.cast.casting_cache import CastingCache
from kernels.cast.fake_arguments import fake_arguments
from kernels.cast.manifest import CastVariant
from kernels.cast.words import Answer
from kernels.launch import launch
from kernels.named import load
from kernels.variants import Variant


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kernels.cast.worker", description=__doc__)
    parser.add_argument("--arch", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    options = parser.parse_args()
    # Triton prints ptxas's complaints, so answers go to a descriptor of their own and prints to the log.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    CastingCache.folder, CastingCache.scratch = options.out, options.scratch
    pinning.pin(CastingCache, host_compiler.compile_stub)
    stub_driver.activate(architecture_named(options.arch))
    driver_stubs = tuple(CastingCache.touched)
    for line in sys.stdin.buffer:
        variant = msgspec.json.decode(line, type=Variant)
        answers.write(msgspec.json.encode(_answer(variant, driver_stubs)) + b"\n")
        shutil.rmtree(options.scratch, ignore_errors=True)


def _answer(variant: Variant, driver_stubs: tuple[str, ...]) -> Answer:
    try:
        return Answer(variant=compile_variant(variant, driver_stubs))
    except Exception as error:  # noqa: BLE001 - a compiler may raise anything; the caller reports it
        traceback.print_exc()
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        return Answer(error=f"{type(error).__name__}: {error}", disk_full=full)


def compile_variant(variant: Variant, driver_stubs: tuple[str, ...]) -> CastVariant:
    """Launch it under the stub driver, exactly as the engine does. Triton itself refuses a kernel that needs more
    shared memory than a block has."""
    heard: list[dict[str, Any]] = []
    knobs.compilation.listener = lambda *, src, metadata, **_: heard.append({"src": src, **metadata})
    CastingCache.touched.clear()
    kernel = load(variant.kernel)
    kernel.device_caches.clear()  # else a kernel compiled for an earlier variant would not be seen
    launch(kernel, variant, (1,), *fake_arguments(variant))
    compiled = heard[-1]
    _compare(variant, compiled["src"])
    keys = tuple(dict.fromkeys((*CastingCache.touched, *driver_stubs)))
    usage = cubin.usage(next((CastingCache.folder / keys[0]).glob("*.cubin")).read_bytes())
    return CastVariant(
        op=variant.op,
        name=variant.name,
        keys=keys,
        shared=compiled["shared"],
        registers=usage.registers,
        stack=usage.stack,
    )


def _compare(variant: Variant, source: Any) -> None:
    """The compiled kernel must match the declaration: if a number's value had been compiled in, it would be a different
    variant."""
    kinds = {name: kind for name, kind in source.signature.items() if kind != "constexpr"}
    if tuple(kinds.values()) != variant.arguments:
        raise AssertionError(f"{variant.name} was compiled for the arguments {', '.join(kinds.values())}")
    noted = [source.fn.arg_names[place[0]] for place, attributes in source.attrs.items() if attributes]
    special = [name for name in noted if name in kinds and not kinds[name].startswith("*")]
    if special:
        raise AssertionError(f"{variant.kernel} does not name {', '.join(special)} in do_not_specialize")
    constants: dict[str, str] = {}
    for (name, _), (value, _) in source.fn.used_global_vals.items():
        # Triton orders them by their addresses in memory.
        if constants.setdefault(name, str(value)) != str(value):
            raise AssertionError(f"{variant.kernel} uses two constants named {name}, so its key would be random")


if __name__ == "__main__":
    main()
