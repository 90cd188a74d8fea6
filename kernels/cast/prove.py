"""`python -m kernels.cast.prove --cast DIR [--launch]`: runs sealed, and says on each op how it fared.

Without `--launch` every declared variant is looked up as a launch would do it, under a driver that runs nothing. With
it every variant of the cast is launched on this machine's GPU by the op's own cases, and compared with the reference.
Either way it is counted what was compiled and which programs were started, from before the seal on.
"""

from __future__ import annotations

import argparse
import resource
import sys
from pathlib import Path
from typing import Any

import msgspec

from kernels.cast.words import Bystanders, Said

_SPAWNING = ("subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system")
# It lists libraries: torch's CUDA bindings ask it where theirs are when they are imported.
_LOOKING = "/sbin/ldconfig -p"


def main() -> None:
    spawned = _watch_spawning()
    parser = argparse.ArgumentParser(prog="python -m kernels.cast.prove", description=__doc__)
    parser.add_argument("--cast", type=Path, required=True)
    parser.add_argument("--launch", action="store_true")
    options = parser.parse_args()

    from kernels.seal import seal

    manifest = seal(options.cast)
    compiled = _listen_for_compilation()
    # Late: a seal comes before whatever imports Triton.
    from kernels.cast import lookups, trials

    proofs = trials.launched(manifest) if options.launch else lookups.found(manifest)
    for proof in proofs:
        _say(proof)
    if resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt and not spawned:
        spawned.append("a program, from native code")
    told = tuple(name for name in spawned if not name.startswith(_LOOKING))
    device = trials.device_name() if options.launch else ""
    _say(Bystanders(device=device, compiled=tuple(compiled), spawned=told))


def _watch_spawning() -> list[str]:
    spawned: list[str] = []

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _SPAWNING:
            command = arguments[1] if len(arguments) > 1 else arguments
            spawned.append((command if isinstance(command, str) else " ".join(map(str, command))) or event)

    sys.addaudithook(hear)
    return spawned


def _listen_for_compilation() -> list[str]:
    from triton import knobs

    compiled: list[str] = []

    def hear(*, metadata: dict[str, Any], cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            compiled.append(metadata["name"])

    knobs.compilation.listener = hear
    return compiled


def _say(said: Said) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
