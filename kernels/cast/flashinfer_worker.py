"""`python -m kernels.cast.flashinfer_worker MODULE`: builds one module, given as JSON, and prints the library's path.

Its environment sets the architecture, the compiler and the folder; see `flashinfer.py`.
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
        raise SystemExit(f"FlashInfer calls {module.name} {spec.name}: Ingot does not support this version of it.")
    build_jit_specs([spec], skip_prebuilt=False)
    print(spec.jit_library_path)


def specification(module: Module) -> Any:
    """FlashInfer's own build specification of `module`."""
    return load(module.generator)(**{key: _argument(key, value) for key, value in module.arguments})


def _argument(name: str, value: Constant) -> Any:
    return load(f"torch:{value}") if name.startswith("dtype_") else value


if __name__ == "__main__":
    main()
