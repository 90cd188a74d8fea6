"""A package `flashinfer` that has the build functions of the real one and writes a few bytes where that runs nvcc for
minutes. `make test-flashinfer` goes the whole way."""

from __future__ import annotations

import textwrap
from pathlib import Path

VERSION = "0.6.13"

_FILES = {
    "flashinfer/__init__.py": """
        from . import jit, norm
        """,
    "flashinfer/jit/__init__.py": """
        import os
        from . import env
        from .core import MissingJITCacheError

        def build_jit_specs(specs, skip_prebuilt=True):
            for spec in specs:
                if os.environ.get("DOUBLE_FAILS"):
                    raise RuntimeError("norm.cu(7): error: identifier is undefined")
                spec.jit_library_path.parent.mkdir(parents=True, exist_ok=True)
                spec.jit_library_path.write_text(f"{spec.name} for {os.environ['FLASHINFER_CUDA_ARCH_LIST']}")
        """,
    "flashinfer/jit/env.py": """
        import os, pathlib
        WORKSPACE = pathlib.Path(os.environ.get("FLASHINFER_WORKSPACE_BASE", pathlib.Path.home()))
        (WORKSPACE / "generated").mkdir(parents=True, exist_ok=True)
        FLASHINFER_AOT_DIR = pathlib.Path(__file__).parents[1] / "data" / "aot"
        """,
    "flashinfer/jit/core.py": """
        import dataclasses, os
        from . import env

        class MissingJITCacheError(RuntimeError):
            def __init__(self, message, spec):
                super().__init__(message)
                self.spec = spec

        @dataclasses.dataclass
        class JitSpec:
            name: str

            @property
            def jit_library_path(self):
                return env.WORKSPACE / "built" / f"{self.name}.so"

            def build_and_load(self):
                library = env.FLASHINFER_AOT_DIR / self.name / f"{self.name}.so"
                if library.exists():
                    return library.read_text()
                if os.environ.get("FLASHINFER_DISABLE_JIT"):
                    raise MissingJITCacheError("JIT compilation is disabled", self)
                raise AssertionError("would have compiled")
        """,
    "flashinfer/jit/norm.py": """
        import os
        from .core import JitSpec

        def gen_norm_module():
            return JitSpec(os.environ.get("DOUBLE_NAME", "norm"))
        """,
    "flashinfer/norm.py": """
        import os
        from .jit.norm import gen_norm_module

        LANGUAGE = "CUDA" if os.environ.get("FLASHINFER_USE_CUDA_NORM") == "1" else "CuTe"

        def rmsnorm(x, weight, eps, out):
            loaded.append(gen_norm_module().build_and_load())

        loaded = []
        """,
    f"flashinfer_python-{VERSION}.dist-info/METADATA": f"""
        Metadata-Version: 2.1
        Name: flashinfer-python
        Version: {VERSION}
        """,
}


def install(folder: Path) -> None:
    """Put it into `folder`, which is to be named in PYTHONPATH."""
    for name, text in _FILES.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(textwrap.dedent(text).lstrip())


def install_nvcc(folder: Path, release: str, *, headers: tuple[str, ...] = ()) -> Path:
    """A CUDA toolkit that says it is `release`; returns its folder."""
    for name in ("bin", "include", "lib64"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for header in headers:
        (folder / "include" / header).touch()
    (folder / "lib64" / f"libcudart.so.{release.partition('.')[0]}").touch()
    nvcc = folder / "bin" / "nvcc"
    nvcc.write_text(
        f'#!/bin/sh\ncase "$1" in\n'
        f"--version) echo 'Cuda compilation tools, release {release}, V{release}.88';;\n"
        f"--dryrun) echo '#$ TOP={folder}/bin/..' >&2;;\nesac\n"
    )
    nvcc.chmod(0o755)
    return folder
