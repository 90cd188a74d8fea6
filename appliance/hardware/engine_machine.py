"""The machine that an engine runs on, with everything that decides how a profile would do there: what the front door
reports of itself, so that others need not judge by their own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from appliance import __version__
from appliance.hardware.machine import Inventory, inventory
from appliance.hardware.own_engine import without_own_engine
from appliance.home import Home
from appliance.redaction import without_secrets
from appliance.secret_names import is_secret_name, without_userinfo
from kernels.cast.setting import cast_summary
from kernels.context import CastSummary
from kernels.libraries import installed

# Environment variables that say how models are run begin so.
_PREFIXES: Final = (
    "CUDA", "DG_", "FLASHINFER_", "GLOO_", "HF_", "HUGGINGFACE_", "INGOT_", "LD_", "NCCL_", "NVIDIA_", "OMP_", "PYTHON",
    "PYTORCH_", "RAY_", "TORCH", "TRANSFORMERS_", "TRITON_", "UCX_", "VLLM_",
)  # fmt: skip
_NAMES: Final = frozenset({
    "CC", "CXX", "HOME", "LANG", "LOGNAME", "PATH", "TEMP", "TMP", "TMPDIR", "USER", "USERNAME", "VIRTUAL_ENV",
    "XDG_CACHE_HOME", "XDG_CONFIG_HOME",
})  # fmt: skip


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """`environ` holds the variables that matter to an engine, none of them secret; `libraries` are name -> version of
    those that backends name; `cast` is what a sealed engine could launch. `free_for_next` is the inventory as it will
    be when the launch that runs has ended, by which another profile is judged; None where nothing runs. `place` is the
    same for two processes that see the same files: what else one of them finds there holds for the other.
    """

    inventory: Inventory
    environ: dict[str, str] = {}
    libraries: dict[str, str] = {}
    cast: CastSummary | None = None
    free_for_next: Inventory | None = None
    place: str = ""
    version: str = ""

    @property
    def for_next(self) -> Inventory:
        return self.free_for_next or self.inventory


def this_machine(environ: Mapping[str, str] = os.environ, home: Home | None = None) -> Machine:
    """Blocking: takes milliseconds without a GPU, some ten with each. With `home`, what that folder's own engine holds
    of the GPUs counts as free for the next launch."""
    found = inventory(home=home, environ=environ)
    later = without_own_engine(found, home) if home is not None and not found.replayed else found
    return Machine(
        inventory=found,
        free_for_next=None if later is found else later,
        environ=telling(environ),
        libraries=dict(installed()),
        cast=cast_summary(environ),
        place=place(),
        version=__version__,
    )


def telling(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that say how models are run, without those named as secrets, and without values that look like
    one."""
    return {
        name: without_secrets(without_userinfo(value))
        for name, value in sorted(environ.items())
        if (name in _NAMES or name.startswith(_PREFIXES)) and not is_secret_name(name)
    }


def place(proc: Path = Path("/proc")) -> str:
    """The kernel's run and the mounts that this process sees; empty if unknown."""
    try:
        boot = (proc / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
        return f"{boot} {os.readlink(proc / 'self' / 'ns' / 'mnt')}"
    except OSError:
        return ""
