"""`/opt/vllm/bin/python -m appliance.image.vllm_modules --out DIR sm_90 [MODULE ...]`: compiles modules of FlashInfer
that vLLM would compile at its first start, in vLLM's Python with its own FlashInfer, and puts them where FlashInfer
looks before it compiles. What DIR holds already of these versions is not built again.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
import time
from pathlib import Path

from kernels.cast import flashinfer
from kernels.cast.architectures import architecture_named
from kernels.cast.errors import CastError
from kernels.cast.files import FLASHINFER
from kernels.vllm_modules import USUAL, modules

AHEAD = "data/aot"
"""Below FlashInfer's package: `<module>/<module>.so` there is loaded without a compiler (`appliance/packages.py`)."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m appliance.image.vllm_modules", description=__doc__)
    parser.add_argument("arch")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("modules", nargs="*", default=[USUAL])
    options = parser.parse_args()
    began = time.monotonic()
    try:
        architecture = architecture_named(options.arch)
        planned = tuple(modules(architecture.number, options.modules))
        flashinfer.build(
            options.out,
            architecture,
            planned,
            len(os.sched_getaffinity(0)),
            lambda module: print(f"{module.name} after {time.monotonic() - began:.0f} s", flush=True),
        )
    except (CastError, ValueError) as error:
        sys.exit(f"vllm_modules: {error}")
    package = importlib.util.find_spec("flashinfer")
    assert package is not None, "it has just built modules"
    assert package.origin is not None, "it is no namespace"
    for module in planned:
        library = Path(FLASHINFER, module.name, f"{module.name}.so")
        target = Path(package.origin).parent / AHEAD / module.name / library.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(options.out / library, target)


if __name__ == "__main__":
    main()
