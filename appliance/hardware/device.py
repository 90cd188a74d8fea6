"""Which device a profile's `device` means on this machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal

import msgspec

from appliance.hardware.gpu import Gpu
from appliance.hardware.machine import Inventory
from appliance.hardware.problems import NONE_USABLE
from appliance.hardware.visible import ORDER, read_visible
from appliance.hardware.visible import VISIBLE as VISIBLE


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """`gpu` None is the CPU. `source` and `why` say what that follows from."""

    gpu: Gpu | None
    source: Literal["default", "profile", "gpu", "environment"]
    why: str

    @property
    def kind(self) -> Literal["cpu", "cuda"]:
        return "cpu" if self.gpu is None else "cuda"

    @property
    def name(self) -> str:
        """As a profile names it: `cpu`, or the UUID."""
        return "cpu" if self.gpu is None else self.gpu.uuid


class DeviceError(ValueError):
    """The device that a profile names is not there. `choices` are the ones that are."""

    def __init__(self, message: str, choices: tuple[str, ...]) -> None:
        super().__init__(message)
        self.choices = choices


def visible_gpus(inventory: Inventory, environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves."""
    return read_visible(environ.get(VISIBLE), inventory, environ.get(ORDER)).gpus


def gpus_of_ranks(device: Device, inventory: Inventory, environ: Mapping[str, str], ranks: int) -> tuple[Gpu, ...]:
    """`device` and the visible GPUs that share a model with it: of its kind first, then those with the most free
    memory. MIG slices cannot share; fewer than `ranks` where no more are there, none on a CPU."""
    first = device.gpu
    if first is None:
        return ()
    others = [gpu for gpu in visible_gpus(inventory, environ) if gpu.uuid != first.uuid and not gpu.parent_uuid]
    others.sort(key=lambda gpu: (_kind(gpu) != _kind(first), -gpu.memory_free_bytes))
    return (first, *others)[:ranks]


def _kind(gpu: Gpu) -> tuple[str, tuple[int, int]]:
    return gpu.name, gpu.compute_capability


def _able(gpus: tuple[Gpu, ...], ranks: int) -> tuple[Gpu, ...]:
    """Those that `ranks` may begin with: whole ones of a kind of which there are enough, as far as there are any."""
    if ranks == 1:
        return gpus
    whole = tuple(gpu for gpu in gpus if not gpu.parent_uuid)
    counts = Counter(map(_kind, whole))
    return tuple(gpu for gpu in whole if counts[_kind(gpu)] >= ranks) or whole or gpus


def select_device(wanted: str, inventory: Inventory, environ: Mapping[str, str], ranks: int = 1) -> Device:
    """Raises DeviceError when `wanted` names a device that is not there. `auto` takes the visible GPU with the most
    free memory, of a kind of which there are as many as `ranks` that share a model, or the CPU where there is none."""
    if wanted == "cpu":
        return Device(gpu=None, source="profile", why="the profile says so")
    visible = read_visible(environ.get(VISIBLE), inventory, environ.get(ORDER))
    gpus = visible.gpus
    if wanted == "auto":
        if gpus:
            able = _able(gpus, ranks)
            best = max(able, key=lambda gpu: gpu.memory_free_bytes)
            why = f"the GPU with the most free memory of {len(able)}" if len(gpus) > 1 else "the GPU of this machine"
            return Device(gpu=best, source="environment" if VISIBLE in environ else "gpu", why=why)
        if inventory.gpus:
            wrong = next((f": {entry.why}" for entry in visible.problems if not entry.visible), "").rstrip(".")
            return Device(gpu=None, source="environment", why=f"{VISIBLE} hides every GPU{wrong}")
        return Device(gpu=None, source="gpu", why=_without(inventory))
    for gpu in inventory.gpus:
        if gpu.uuid.lower() == wanted.lower():
            return Device(gpu=gpu, source="profile", why=f"named in the profile: {gpu.name}")
    choices = ("auto", "cpu", *(gpu.uuid for gpu in inventory.gpus))
    if inventory.gpus:
        message = f"{wanted} was not found. Available: {', '.join(map(str, inventory.gpus))}."
        parents = [gpu for gpu in inventory.gpus if gpu.parent_uuid and gpu.parent_uuid.lower() == wanted.lower()]
        if parents:
            message = f"{wanted} is divided into MIG slices. Name one: {', '.join(map(str, parents))}."
    else:
        message = f"{wanted} was not found: {_without(inventory)}."
    raise DeviceError(message, choices)


def _without(inventory: Inventory) -> str:
    """Why there is none, to be written within a sentence."""
    return (inventory.problem or "this machine has no GPU").removesuffix(NONE_USABLE).rstrip(". ")
