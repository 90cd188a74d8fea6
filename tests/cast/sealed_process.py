"""`python -m tests.cast.sealed_process CAST PROFILE [MISUSE ...]`: an engine's process as far as one can be had without
a GPU. Sealed to a cast, it calls every op's public function with real tensors, and prints what came of it as JSON.

A misuse is one of those below; it is done instead, and what it raised is printed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernels.named import load
from kernels.seal import NotCast, seal

SPAWNING = ("subprocess.Popen", "os.exec", "os.fork", "os.posix_spawn", "os.system")


def main() -> None:
    spawned: list[str] = []
    sys.addaudithook(lambda event, _: spawned.append(event) if event in SPAWNING else None)
    cast, profile, *misuses = sys.argv[1:]
    manifest = seal(Path(cast))

    from triton import knobs

    from appliance.cast.models import profile_and_context
    from appliance.home import Home
    from kernels import launch
    from kernels.cast import stub_driver
    from kernels.cast.architectures import ARCHITECTURES

    compiled: list[str] = []
    knobs.compilation.listener = lambda *, metadata, cache_hit, **_: None if cache_hit else compiled.append(metadata)
    architecture = ARCHITECTURES[manifest.architecture]
    stub_driver.activate(architecture)
    _, context = profile_and_context(profile, Home.from_environment(), architecture)
    launched: set[str] = set()
    with launch.listening(lambda variant: launched.add(variant.name)):
        caught = {name: _caught(MISUSES[name], context) for name in misuses}
        missing = [] if misuses else _call_every_op(context)
    print(
        json.dumps(
            {
                "launched": sorted(launched),
                "missing": missing,
                "cast": sorted(variant.name for variant in manifest.variants),
                "compiled": len(compiled),
                "spawned": spawned,
                "caught": caught,
                "compiler": os.environ["CC"],
            }
        )
    )


def _call_every_op(context: Any) -> list[str]:
    """What was not cast: a case may mix what its model needs with what another would."""
    import torch

    from kernels.cast import plan

    torch.empty, torch.empty_like = torch.zeros, torch.zeros_like  # type: ignore[assignment]  # no kernel runs: what one would write stays 0
    missing: list[str] = []
    for op, backend in plan.triton_backends(context.arch):
        if op.needed(context):
            function = load(backend.function)
            for case in load(f"kernels.{op.name}.cases:cases")(context.arch, context):
                try:
                    case.run(function, torch.device("cpu"))
                except NotCast as error:
                    missing.append(str(error))
    return missing


def _caught(misuse: Callable[[Any], None], context: Any) -> str:
    try:
        misuse(context)
    except NotCast as error:
        return str(error)
    return ""


def _misaligned(context: Any) -> None:
    """A view that begins two bytes into its memory."""
    import torch

    from kernels.rms_norm.triton import rms_norm

    size = context.hidden_size
    x = torch.zeros(4 * size + 1, dtype=torch.bfloat16)[1:].view(4, size)
    rms_norm(x, torch.ones(size, dtype=torch.bfloat16), 1e-6, torch.zeros(4, size, dtype=torch.bfloat16))


def _too_many(context: Any) -> None:
    """2^31 rows."""
    _launch_norm(_norm(context), rows=2**31)


def _undeclared(context: Any) -> None:
    """A variant that no op declares."""
    _launch_norm(dataclasses.replace(_norm(context), num_warps=2), rows=4)


def _unaligned_ids(context: Any) -> None:
    """Token ids may begin anywhere, so that this is but a variant that no op declares."""
    import torch

    from kernels.embedding import triton, variants
    from kernels.launch import launch

    variant = dataclasses.replace(next(variants.variants(context.arch, context)), num_warps=2)
    table = torch.zeros(4, context.hidden_size, dtype=torch.bfloat16)
    launch(triton.embedding_kernel, variant, (1,), torch.zeros(3, dtype=torch.int64)[1:], table, table, 1)


def _other_model(context: Any) -> None:
    """A variant that another model needs."""
    _launch_norm(_norm(dataclasses.replace(context, hidden_size=8192)), rows=4)


def _norm(context: Any) -> Any:
    from kernels.rms_norm import variants

    return next(variants.variants(context.arch, context))


def _launch_norm(variant: Any, rows: int) -> None:
    import torch

    from kernels.launch import launch
    from kernels.rms_norm import triton

    x = torch.zeros(4, 16384, dtype=torch.bfloat16)
    numbers = [rows if kind == "i32" else 1e-6 for kind in variant.arguments if not kind.startswith("*")]
    pointers = [x for kind in variant.arguments if kind.startswith("*")]
    launch(triton.rms_norm_kernel, variant, (1,), *pointers, *numbers)


MISUSES: dict[str, Callable[[Any], None]] = {
    "misaligned": _misaligned,
    "too-many": _too_many,
    "unaligned-ids": _unaligned_ids,
    "undeclared": _undeclared,
    "other-model": _other_model,
}

if __name__ == "__main__":
    main()
