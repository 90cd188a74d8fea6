"""A GPU's context, which takes the driver a quarter of a second to create."""

from __future__ import annotations

import ctypes
import threading
from typing import Final

import torch

DRIVER: Final = "libcuda.so.1"


def open_ahead(device: torch.device) -> None:
    """Have the context of `device` created while Python goes on importing and reading; torch takes it over, and waits
    for it. What goes wrong it reports itself. Not while anybody changes the environment, which the driver reads."""
    if device.type == "cuda":
        threading.Thread(target=_open, args=(device.index or 0,), name="device-context", daemon=True).start()


def _open(index: int) -> None:
    try:
        driver = ctypes.CDLL(DRIVER)  # whose calls, unlike torch's, let other threads of Python run
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if not driver.cuInit(0) and not driver.cuDeviceGet(ctypes.byref(device), index):
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
