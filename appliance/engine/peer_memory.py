"""Memory of a GPU that the other GPUs of the host read and write, in processes of their own.

The driver is called by itself: torch would share its own memory only, and open it in a context of the other GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from appliance.engine.device_context import DRIVER
from appliance.models.collectives import Group
from kernels.all_reduce import shared_bytes
from kernels.all_reduce.shared import Shared, layout

_HANDLE_BYTES = 64
_ENABLE_PEER_ACCESS = 1


class _Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * _HANDLE_BYTES),)


class PeerMemoryError(RuntimeError):
    """A GPU's memory cannot be shared; the message says why."""


def open_shared(group: Group, device: torch.device, log: Callable[[str], None]) -> Shared | None:
    """Memory of each rank of `group`, rank n on GPU n, that all of them can read and write; None where that cannot be,
    which `log` hears. All ranks call it."""
    start, said = 0, ""
    try:
        start = _allocate(group, device)
        handle = bytes(_handle_of(start))
    except PeerMemoryError as error:
        said, handle = str(error), bytes(_HANDLE_BYTES)
    row = torch.tensor([[not said, *handle]], dtype=torch.uint8, device=device)
    rows = [bytes(each) for each in group.gather(row).view(group.count, -1).tolist()]
    starts = []
    if all(row[0] for row in rows):
        try:
            starts = [start if rank == group.rank else _open(row[1:]) for rank, row in enumerate(rows)]
        except PeerMemoryError as error:
            said = str(error)
    if not bool(group.all(torch.tensor([len(starts) == group.count], device=device)).item()):
        log(f"NCCL sums all that the ranks compute: {said or 'another rank cannot share its memory'}")
        return None
    return layout(starts, group.rank, device)


def _allocate(group: Group, device: torch.device) -> int:
    """The address of zeros on `device`. They are there when the next call for the GPU's results returns."""
    for rank in range(group.count):
        if rank != group.rank and not torch.cuda.can_device_access_peer(device, rank):
            raise PeerMemoryError(f"GPU {group.rank} cannot reach the memory of GPU {rank}")
    size, start = shared_bytes(group.count), ctypes.c_uint64()
    _call("cuMemAlloc_v2", ctypes.byref(start), ctypes.c_size_t(size))
    _call("cuMemsetD8_v2", start, ctypes.c_ubyte(0), ctypes.c_size_t(size))
    _call("cuCtxSynchronize")
    return start.value


def _handle_of(start: int) -> list[int]:
    handle = _Handle()
    _call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(start))
    return list(handle.bytes)


def _open(handle: bytes) -> int:
    start = ctypes.c_uint64()
    taken = _Handle.from_buffer_copy(handle)
    _call("cuIpcOpenMemHandle_v2", ctypes.byref(start), taken, ctypes.c_uint(_ENABLE_PEER_ACCESS))
    return start.value


def _call(name: str, *arguments: object) -> None:
    status = getattr(ctypes.CDLL(DRIVER), name)(*arguments)
    if status:
        words = ctypes.c_char_p()
        ctypes.CDLL(DRIVER).cuGetErrorName(status, ctypes.byref(words))
        raise PeerMemoryError(f"{name} says {words.value.decode() if words.value else status}")
