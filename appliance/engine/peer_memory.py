"""Memory of a GPU that the other GPUs of the host read and write, in processes of their own.

The driver is called by itself: torch would share its own memory only, and open it in a context of the other GPU.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

import torch

from appliance.engine.device_context import DRIVER
from appliance.models.collectives import Group
from kernels.all_reduce import shared_bytes
from kernels.all_reduce.shared import Shared, layout

_HANDLE_BYTES = 64
_ENABLE_PEER_ACCESS = 1
_MARK_BYTES = 4096


class _Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * _HANDLE_BYTES),)


class PeerMemoryError(RuntimeError):
    """A GPU's memory cannot be shared; the message says why."""


def open_shared(group: Group, device: torch.device, log: Callable[[str], None]) -> Shared | None:
    """Memory of each rank of `group`, rank n on GPU n, that all of them can read and write; None where that cannot be,
    or NCCL is told to do without, which `log` hears. All ranks call it."""
    start, starts, handle, said = 0, list[int](), bytes(_HANDLE_BYTES), ""
    try:
        start = _allocate(group, device)
        handle = _handle_of(start)
    except PeerMemoryError as error:
        said = str(error)
    row = torch.tensor([[not said, *handle]], dtype=torch.uint8, device=device)
    rows = [bytes(each) for each in group.gather(row).view(group.count, -1).tolist()]
    if all(row[0] for row in rows):
        try:
            for rank, row_of in enumerate(rows):
                starts.append(start if rank == group.rank else _open(row_of[1:]))
            for rank, each in enumerate(starts):
                _read_mark(rank, each)
        except PeerMemoryError as error:
            said = str(error)
    elif not said:
        said = "another rank cannot share its memory"
    if bool(group.all(torch.tensor([not said], device=device)).item()):
        return layout(starts, group.rank, device)
    for rank, each in enumerate(starts):
        if rank != group.rank:
            _call("cuIpcCloseMemHandle", ctypes.c_uint64(each))
    group.wait_for_all(device)  # until nobody has it open
    if start:
        _call("cuMemFree_v2", ctypes.c_uint64(start))
    log(f"NCCL sums all that the ranks compute: {said or 'another rank cannot read what this one shares'}")
    return None


def _allocate(group: Group, device: torch.device) -> int:
    """The address of memory on `device` with zeros, but for the rank's mark at its beginning."""
    if os.environ.get("NCCL_P2P_DISABLE", "0") != "0":
        raise PeerMemoryError("NCCL_P2P_DISABLE is set")
    for rank in range(group.count):
        if rank != group.rank and not torch.cuda.can_device_access_peer(device, rank):
            raise PeerMemoryError(f"GPU {group.rank} cannot reach the memory of GPU {rank}")
    size, start = shared_bytes(group.count), ctypes.c_uint64()
    _call("cuMemAlloc_v2", ctypes.byref(start), ctypes.c_size_t(size))
    try:
        _call("cuMemsetD8_v2", start, ctypes.c_ubyte(0), ctypes.c_size_t(size))
        _call("cuMemsetD8_v2", start, ctypes.c_ubyte(_mark(group.rank)), ctypes.c_size_t(_MARK_BYTES))
        _call("cuCtxSynchronize")
    except PeerMemoryError:
        _call("cuMemFree_v2", start)
        raise
    return start.value


def _handle_of(start: int) -> bytes:
    handle = _Handle()
    _call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(start))
    return bytes(handle.bytes)


def _open(handle: bytes) -> int:
    start = ctypes.c_uint64()
    taken = _Handle.from_buffer_copy(handle)
    _call("cuIpcOpenMemHandle_v2", ctypes.byref(start), taken, ctypes.c_uint(_ENABLE_PEER_ACCESS))
    return start.value


def _read_mark(rank: int, start: int) -> None:
    """Of the rank whose memory is at `start` here: some hosts let GPUs reach each other, and bring wrong bytes."""
    found = (ctypes.c_ubyte * _MARK_BYTES)()
    _call("cuMemcpyDtoH_v2", ctypes.byref(found), ctypes.c_uint64(start), ctypes.c_size_t(_MARK_BYTES))
    if set(found) != {_mark(rank)}:
        raise PeerMemoryError(f"what is read of GPU {rank}'s memory is not what was written there")


def _mark(rank: int) -> int:
    return 0xA0 + rank


def _call(name: str, *arguments: object) -> None:
    status = getattr(ctypes.CDLL(DRIVER), name)(*arguments)
    if status:
        words = ctypes.c_char_p()
        ctypes.CDLL(DRIVER).cuGetErrorName(status, ctypes.byref(words))
        raise PeerMemoryError(f"{name} says {words.value.decode() if words.value else status}")
