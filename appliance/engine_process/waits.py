"""What a process waits for in the kernel, as far as /proc tells: a lock and who holds it, a socket, a pipe, a file."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

# The system calls whose first argument is what they wait for.
CALLS = {
    "x86_64": {0: "read", 17: "read", 19: "read", 42: "connect", 43: "accept", 45: "read", 47: "read", 288: "accept"},
    "aarch64": {63: "read", 67: "read", 65: "read", 203: "connect", 202: "accept", 207: "read", 212: "read",
                242: "accept"},
}  # fmt: skip
# 3: -> FLOCK  ADVISORY  WRITE 1234 fe:00:3211641 0 EOF
LOCK = re.compile(
    r"(?P<number>\d{1,9}): (?P<waits>-> )?\S{1,20} {1,9}\S{1,20} {1,9}\S{1,20} {1,9}(?P<pid>-?\d{1,9}) "
    r"[0-9a-f]{1,9}:[0-9a-f]{1,9}:(?P<inode>\d{1,20}) "
)
GPU_DEVICES = ("/dev/nvidia", "/dev/dri/", "/dev/kfd")
MAX_SOCKETS = 20_000


def waits_of(pid: int) -> list[str]:
    """A line each."""
    return [*_locks(pid), *_descriptors(pid)]


def _locks(pid: int) -> Iterator[str]:
    """A waiting request has the number of the lock that another process holds."""
    try:
        found = [lock for line in Path("/proc/locks").read_text().splitlines() if (lock := LOCK.match(line))]
    except OSError:
        return
    holders = {lock["number"]: lock["pid"] for lock in found if not lock["waits"]}
    for lock in found:
        if lock["waits"] and int(lock["pid"]) == pid:
            path = _open_file(pid, int(lock["inode"])) or f"inode {lock['inode']}"
            yield f"Waits for the lock on {path}, held by process {holders.get(lock['number'], '?')}"


def _open_file(pid: int, inode: int) -> str | None:
    with contextlib.suppress(OSError):
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if handle.stat().st_ino == inode:
                    return os.readlink(handle)
    return None


def _descriptors(pid: int) -> Iterator[str]:
    """What the main thread's system call waits for."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        number, first, *_ = Path(f"/proc/{pid}/syscall").read_text().split()
        call = CALLS.get(platform.machine(), {}).get(int(number))
        if call is not None:
            yield _in_words(pid, call, os.readlink(f"/proc/{pid}/fd/{int(first, 16)}"))


def _in_words(pid: int, call: str, link: str) -> str:
    if link.startswith("socket:["):
        where = _address(pid, link[len("socket:[") : -1])
        what = {"connect": "a connection to", "accept": "connections at"}.get(call, "data from")
        return f"Waits for {what} {where}"
    if link.startswith("pipe:["):
        return "Waits for data from a pipe"
    if link.startswith(GPU_DEVICES):
        return f"Waits for the GPU at {link}"
    return f"Waits for the file {link}"


def _address(pid: int, inode: str) -> str:
    """Of a socket: the other side where it is connected, or else its own."""
    for name in ("tcp", "tcp6"):
        for fields in _sockets(pid, name):
            if len(fields) > 9 and fields[9] == inode:
                other = _host_and_port(fields[2])
                return f"the socket {_host_and_port(fields[1]) if other.endswith(':0') else other}"
    path = next((fields[7] for fields in _sockets(pid, "unix") if len(fields) > 7 and fields[6] == inode), "")
    return f"the socket {path}" if path else "a socket"


def _sockets(pid: int, name: str) -> list[list[str]]:
    try:
        lines = Path(f"/proc/{pid}/net/{name}").read_text().splitlines()
    except OSError:
        return []
    return [line.split() for line in lines[1:MAX_SOCKETS]]


def _host_and_port(text: str) -> str:
    """As the kernel writes it: an IPv4 address is a little-endian number in hexadecimal."""
    host, _, port = text.partition(":")
    address = ".".join(map(str, reversed(bytes.fromhex(host)))) if len(host) == 8 else "[ipv6]"
    return f"{address}:{int(port, 16)}"
