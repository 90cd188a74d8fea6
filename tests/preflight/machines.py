"""Machines for the checks: recorded hardware, a root folder with the files that a check reads, and Pythons with the
distributions that an engine needs, none of which is real."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import structs

from appliance.hardware import Inventory
from appliance.hardware.machine import replayed
from appliance.home import Home
from appliance.packages import Packages
from appliance.preflight import PreflightContext, Report, Surroundings, run
from appliance.preflight.registry import CHECKS
from appliance.profile.document import apply_patch
from appliance.protocol import Finding

RECORDINGS = Path(__file__).parents[1] / "hardware" / "recordings"
NAMES = sorted(path.stem for path in RECORDINGS.glob("*.json"))
CHAT: dict[str, Any] = {"name": "chat", "model": {"path": "tiny"}}
GIB = 1 << 30


def recorded(name: str, **host: Any) -> Inventory:
    """As if it were this machine's own, so that the local checks look as well; `host` changes its host's figures."""
    found = replayed(RECORDINGS / f"{name}.json")
    return structs.replace(found, replayed=None, host=structs.replace(found.host, **host))


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def install(prefix: Path, *, torch: str = "2.13.0+cu130", cuda: str | None = "13.0", **others: str) -> Packages:
    """A Python's site-packages with torch and Triton in it, and `others` (deep_gemm="1.0") as distributions."""
    folder = prefix / "lib/python3.12/site-packages"
    said = f"'{cuda}'" if cuda else "None"
    files = {
        "torch/version.py": f"__version__ = '{torch}'\ncuda: Optional[str] = {said}\n",
        "triton/backends/nvidia/bin/ptxas": "",
        "triton/backends/nvidia/bin/ptxas-blackwell": "",
    }
    for name, version in {"torch": torch.partition("+")[0], "triton": "3.7.1", **others}.items():
        files[f"{name}-{version}.dist-info/METADATA"] = f"Name: {name}\nVersion: {version}\n"
    write(folder, files)
    return Packages((folder,))


def vllm(prefix: Path, *, version: str = "0.32.0", **others: str) -> Path:
    """The `vllm` command of a Python of its own, with those parts of its source that are read."""
    packages = install(prefix, vllm=version, flashinfer_python="0.6.13", **others)
    source = {
        "__init__.py": "",
        "platforms/cuda.py": "nvmlDeviceGetHandleByUUID",
        "envs.py": 'environment_variables = {\n    "VLLM_USE_DEEP_GEMM": 1,\n    "VLLM_LOGGING_LEVEL": 2,\n'
        '    "VLLM_ATTENTION_BACKEND": 3,\n    "VLLM_WORKER_MULTIPROC_METHOD": env_with_choices(\n'
        '        "VLLM_WORKER_MULTIPROC_METHOD", "fork", ["spawn", "fork"]\n    ),\n'
        '    "VLLM_KV_CACHE_LAYOUT": env_with_choices("VLLM_KV_CACHE_LAYOUT", None, ["NHD", "HND"]),\n'
        '    "VLLM_ANY_CASE": env_with_choices("VLLM_ANY_CASE", None, ["a"], case_sensitive=False),\n}\n',
        "config/cache.py": 'CacheDType = Literal["auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"]\n',
        "model_executor/models/registry.py": '_TEXT_MODELS = {"LlamaForCausalLM": 1, "MambaForCausalLM": 2}\n'
        '_VLLM_MODELS = {**_TEXT_MODELS}\n_PREVIOUSLY_SUPPORTED_MODELS = {"OldForCausalLM": 1}\n',
        "model_executor/layers/rotary_embedding/__init__.py": "def get(scaling_type):\n"
        '    if scaling_type == "default":\n        pass\n'
        '    elif scaling_type in ["dynamic", "longrope"]:\n        pass\n',
        "model_executor/layers/quantization/__init__.py": 'QuantizationMethods = Literal["awq", "fp8", "mxfp4"]\n'
        "def get():\n    from .awq import Awq\n    from .mx import Mx\n"
        '    method_to_config = {"awq": Awq, "mxfp4": Mx}\n',
        "model_executor/layers/quantization/awq.py": "class Base:\n    def get_min_capability(cls):\n"
        "        return 75\nclass Awq(Base):\n    def get_supported_act_dtypes(self):\n        return [torch.half]\n",
        "model_executor/layers/quantization/mx.py": "class Mx:\n    def get_min_capability(cls):\n        return 80\n",
    }
    write(packages.folders[0] / "vllm", source)
    program = prefix / "bin" / "vllm"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!{prefix}/bin/python\n")
    program.chmod(0o755)
    write(prefix, {"bin/python": "", "include/python3.12/Python.h": "", "bin/ninja": ""})
    return program


def sane(root: Path, packages: Packages | None = None) -> Surroundings:
    """A machine on which nothing is wrong."""
    files = {
        "/proc/self/mounts": "overlay / overlay rw,relatime 0 0\ntmpfs /dev/shm tmpfs rw 0 0\n",
        "/proc/sys/vm/overcommit_memory": "0\n",
        "/proc/sys/vm/max_map_count": "65530\n",
        "/etc/passwd": f"root:x:0:0::/root:/bin/sh\ningot:x:{os.geteuid()}:{os.geteuid()}::/home/ingot:/bin/sh\n",
        "/usr/bin/gcc": "",
        "/usr/bin/ninja": "",
        "/usr/local/cuda/bin/nvcc": "",
        "/usr/include/python3.12/Python.h": "",
        "/home/ingot/.profile": "",
        "/tmp/.keep": "",
    }
    return Surroundings(root=write(root, files), packages=packages or Packages(()), now=time.time())


ENVIRON = {
    "PATH": "/usr/bin:/usr/local/cuda/bin", "HOME": "/home/ingot", "LANG": "C.UTF-8", "INGOT_JIT": "1", "USER": "ingot",
}  # fmt: skip


def look(
    home: Home,
    changes: Mapping[str, Any] | None = None,
    *,
    inventory: Inventory,
    surroundings: Surroundings | None = None,
    environ: Mapping[str, str] | None = None,
    only: str = "",
    **context: Any,
) -> Report:
    """`only` runs one check; a value of None in `environ` removes the variable."""
    document = apply_patch(CHAT, changes or {})
    merged = {name: value for name, value in {**ENVIRON, **(environ or {})}.items() if value is not None}
    asked = PreflightContext(
        home=home, document=document, environ=merged, inventory=inventory, surroundings=surroundings, **context
    )
    if not only:
        return run(asked)
    checks = [replace(check, after=()) for check in CHECKS if check.id == only]
    assert checks, only
    return run(asked, checks)


def ids(report: Report) -> list[str]:
    return [finding.id for finding in report.findings]


def one(report: Report) -> Finding:
    (finding,) = report.findings
    assert finding.fix is not None, "every finding ends in a fix"
    return finding
