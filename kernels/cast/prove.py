"""`python -m kernels.cast.prove --cast DIR [--launch]`: runs sealed, and reports the result for each op.

Without `--launch` every declared variant is looked up as in a launch, under a driver that runs nothing. With it, every
variant of the cast is launched on this machine's GPU by the op's own cases and compared with the reference. Both report
what was compiled, which programs were started and which compilers were mapped, from before the seal on.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from kernels.cast.watch import Watch
from kernels.cast.words import Said


def main() -> None:
    watch = Watch()
    parser = argparse.ArgumentParser(prog="python -m kernels.cast.prove", description=__doc__)
    parser.add_argument("--cast", type=Path, required=True)
    parser.add_argument("--launch", action="store_true")
    options = parser.parse_args()

    from kernels.seal import seal

    manifest = seal(options.cast)
    watch.listen_to_triton()
    # Imported late: the seal must come before any import of Triton.
    from kernels.cast import lookups, trials

    device = trials.open_device() if options.launch else ""
    watch.device_opened()
    proofs = trials.launched(manifest) if options.launch else lookups.found(manifest)
    for proof in proofs:
        say(proof)
    say(watch.seen(device))


def say(said: Said) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
