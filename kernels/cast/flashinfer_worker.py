"""`python -m kernels.cast.flashinfer_worker MODULE`: builds one module, given as JSON, and prints where the library is.

Its environment says for which architecture, with which compiler and where; see `flashinfer.py`.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec
from flashinfer.jit import build_jit_specs

from kernels.modules import Module
from kernels.named import load
from kernels.variants import Constant


def main() -> None:
    module = msgspec.json.decode(sys.argv[1], type=Module)
    spec = specification(module)
    if spec.name != module.name:
        raise SystemExit(f"FlashInfer calls it {spec.name}: this version of it is not one that Ingot knows.")
    build_jit_specs([spec], skip_prebuilt=False)
    print(spec.jit_library_path)


def specification(module: Module) -> Any:
    """What FlashInfer's own function says about how to build `module`."""
    return load(module.generator)(**{key: _argument(key, value) for key, value in module.arguments})


def _argument(name: str, value: Constant) -> Any:
    return load(f"torch:{value}") if name.startswith("dtype_") else value


if __name__ == "__main__":
    main()
