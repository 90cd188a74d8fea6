"""What CUDA_VISIBLE_DEVICES leaves, read as CUDA reads it: the first entry decides whether the list is of indices or of
UUIDs, the list ends at the first entry that names nothing of that kind, and one that repeats a GPU spoils it all.

Measured with driver 580 on eight GPUs, by what `cuInit` and `cuDeviceGetUuid` answered; of slices, as NVIDIA's user
guide to MIG says.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from appliance.hardware.gpu import Gpu
from appliance.hardware.machine import Inventory

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
ORDER: Final = "CUDA_DEVICE_ORDER"

Wrong = Literal[
    "",  # nothing is
    "hides-all",  # -1 and the like, in the first place: no GPU is wanted
    "hides-rest",  # a negative index further on
    "out-of-range",
    "unknown",
    "ambiguous",
    "repeated",
    "mixed",
    "unreached",
    "divided",  # CUDA takes the first slice of the GPU
    "cut",  # an index with something behind it, such as `0;1`
    "order-unknown",  # an index, where GPUs differ and CUDA puts the fastest first
]

_INDEX: Final = re.compile(r"\s*([+-]?\d{1,99})(.*)", re.ASCII | re.DOTALL)
_UUID: Final = re.compile(r"(?:GPU|MIG)-([0-9a-fA-F-]*)")
_OLD_MIG: Final = re.compile(r"MIG-GPU-([0-9a-fA-F-]+)/(\d+)/(\d+)")
# Words of NVIDIA_VISIBLE_DEVICES, which NVIDIA's container runtime reads, not CUDA.
_RUNTIME_WORDS: Final = ("all", "none", "void")
_NO_DEVICE_FILES: Final = "NoDevFiles"


class VisibleEntry(NamedTuple):
    """One entry of the list. `gpu` is what it names, even where CUDA does not come so far; `visible` says whether it
    does. `why` is a sentence about what is `wrong`."""

    text: str
    gpu: Gpu | None
    visible: bool = True
    wrong: Wrong = ""
    why: str = ""


class VisibleDevices(NamedTuple):
    """`gpus` are those that CUDA leaves, in its order. `refused`: CUDA fails for the list instead of reading it.
    `listed` None: the variable is not set, and every GPU is visible."""

    listed: str | None
    entries: tuple[VisibleEntry, ...]
    gpus: tuple[Gpu, ...]
    refused: bool = False

    @property
    def problems(self) -> tuple[VisibleEntry, ...]:
        """The entries that do not do what they seem to; to hide every GPU is none."""
        return tuple(entry for entry in self.entries if entry.wrong not in ("", "hides-all"))

    @property
    def meant(self) -> str:
        """The list by UUIDs, each once, of all that its entries name: what was probably wanted."""
        return ",".join(dict.fromkeys(entry.gpu.uuid for entry in self.entries if entry.gpu))


def read_visible(listed: str | None, inventory: Inventory, order: str | None = None) -> VisibleDevices:
    """`listed` is the value of CUDA_VISIBLE_DEVICES, `order` that of CUDA_DEVICE_ORDER; None where unset."""
    if listed is None:
        return VisibleDevices(None, (), inventory.gpus)
    texts = listed.split(",") if listed.strip() else []
    by_uuid = bool(texts) and _is_uuid(texts[0].strip())
    entries: list[VisibleEntry] = []
    ended = refused = False
    for place, text in enumerate(texts):
        if not text.strip() and place == len(texts) - 1:
            continue  # a comma at the end does no harm
        entry = _name(text, inventory, order)
        if not ended and entry.wrong != "hides-all" and _is_uuid(text.strip()) != by_uuid and entry.gpu:
            first, other = ("a UUID", "index") if by_uuid else ("an index", "UUID")
            why = f"{text.strip()!r} is ignored: a list that starts with {first} ends at the first {other}."
            entry = entry._replace(visible=False, wrong="mixed", why=why)
        elif not ended and entry.visible and entry.gpu in [before.gpu for before in entries if before.visible]:
            why = f"{text.strip()!r} lists a GPU twice, which CUDA rejects."
            entry, refused = entry._replace(visible=False, wrong="repeated", why=why), True
        elif ended:
            why = f"{text.strip()!r} is ignored: the list ends at {_end(entries)!r}."
            entry = entry._replace(visible=False, wrong="unreached", why=why)
        elif entry.wrong == "hides-all" and entries:
            entry = entry._replace(wrong="hides-rest", why=f"The list ends at {text.strip()!r}.")
        ended = ended or not entry.visible
        entries.append(entry)
    gpus = () if refused else tuple(entry.gpu for entry in entries if entry.visible and entry.gpu)
    return VisibleDevices(listed, tuple(entries), gpus, refused)


def _end(entries: Sequence[VisibleEntry]) -> str:
    return next(entry.text.strip() for entry in entries if not entry.visible)


def _is_uuid(text: str) -> bool:
    return text.startswith(("GPU-", "MIG-"))


def _name(text: str, inventory: Inventory, order: str | None) -> VisibleEntry:
    """What one entry names by itself."""
    if _is_uuid(text.strip()):
        return _by_uuid(text, inventory)
    index = _INDEX.match(text)
    if index:
        entry = _by_index(text, ctypes.c_int32(int(index[1])).value, inventory, order)  # it wraps there too
        if entry.visible and not entry.wrong and index[2].strip():
            why = f"{text.strip()!r} is read as {index[1]}; the rest is ignored."
            entry = entry._replace(wrong="cut", why=why)
        return entry
    if text.strip() == _NO_DEVICE_FILES:
        return VisibleEntry(text, None, False, "hides-all", f"{_NO_DEVICE_FILES} hides every GPU.")
    why = f"{text.strip()!r} is neither an index nor a UUID such as GPU-... or MIG-...."
    if text.strip().lower() in _RUNTIME_WORDS:
        why = f"{text.strip()!r} only works in NVIDIA_VISIBLE_DEVICES; CUDA ignores it."
    return VisibleEntry(text, None, False, "unknown", why)


def _by_index(text: str, index: int, inventory: Inventory, order: str | None) -> VisibleEntry:
    if index < 0:
        return VisibleEntry(text, None, False, "hides-all", f"{text.strip()} hides every GPU.")
    board = next(((gpu, slices) for gpu, slices in inventory.boards if gpu.index == index), None)
    if board is None:
        count = len(inventory.boards)
        named = index if str(index) in text else f"{index} (how CUDA reads {text.strip()!r})"
        there = "this machine has no GPU" if not count else f"the last one is {inventory.boards[-1][0].index}"
        return VisibleEntry(text, None, False, "out-of-range", f"There is no GPU {named}: {there}.")
    gpu, slices = board
    if slices:
        why = (
            f"GPU {index} is divided into {len(slices)} {'slice' if len(slices) == 1 else 'slices'} without an "
            f"index; CUDA takes the first. Name one by UUID, such as {slices[0].uuid}."
        )
        return VisibleEntry(text, slices[0], True, "divided", why)
    if gpu in inventory.divided:
        return VisibleEntry(text, None, False, "unknown", f"GPU {index} is in MIG mode without slices.")
    if order != "PCI_BUS_ID" and len({board.name for board, _ in inventory.boards}) > 1:
        why = (
            f"Index {index} is ambiguous: CUDA counts the fastest GPU first, and these GPUs differ. Name it by "
            f"UUID, or set {ORDER}=PCI_BUS_ID."
        )
        return VisibleEntry(text, gpu, True, "order-unknown", why)
    return VisibleEntry(text, gpu)


def _by_uuid(text: str, inventory: Inventory) -> VisibleEntry:
    named = text.strip()
    old = _OLD_MIG.match(named)
    if old:
        found = [
            gpu
            for gpu in inventory.gpus
            if gpu.parent_uuid
            and _digits(gpu.parent_uuid).startswith(_digits(old[1]))
            and (gpu.gpu_instance, gpu.compute_instance) == (int(old[2]), int(old[3]))
        ]
    else:
        uuid = _UUID.match(named)
        digits = _digits(uuid[1]) if uuid else ""
        of_slices = named.startswith("MIG-")
        found = [gpu for gpu in inventory.gpus if digits and _digits(gpu.uuid).startswith(digits)]
        found = [gpu for gpu in found if of_slices or gpu.parent_uuid is None]
        parents = [gpu for gpu in inventory.divided if digits and _digits(gpu.uuid).startswith(digits)]
        if not found and len(parents) == 1:
            slices = [gpu for gpu in inventory.gpus if gpu.parent_uuid == parents[0].uuid]
            return _of_divided(text, parents[0], slices)
    if len(found) == 1:
        if text != text.lstrip():
            why = f"There is a space before {named!r}; CUDA does not accept a UUID after one."
            return VisibleEntry(text, found[0], False, "unknown", why)
        return VisibleEntry(text, found[0])
    if found:
        return VisibleEntry(text, None, False, "ambiguous", f"{named!r} matches {len(found)} devices.")
    return VisibleEntry(text, None, False, "unknown", f"{named} was not found.")


def _of_divided(text: str, parent: Gpu, slices: Sequence[Gpu]) -> VisibleEntry:
    if not slices:
        return VisibleEntry(text, None, False, "unknown", f"{parent.name} is in MIG mode without slices.")
    why = (
        f"{text.strip()} is divided into {len(slices)} {'slice' if len(slices) == 1 else 'slices'}: CUDA takes the "
        f"first. Name one by UUID, such as {slices[0].uuid}."
    )
    return VisibleEntry(text, slices[0], True, "divided", why)


def _digits(uuid: str) -> str:
    """Of "GPU-0362-8EC3", "03628ec3"."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-").replace("-", "").lower()
