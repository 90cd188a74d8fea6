"""What a process waits for in the kernel, as far as /proc tells: a lock and who holds it, a socket or a pipe and who
has its other end, a file, the end of another process."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import platform
import re
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

# The system calls by what they wait for, and which of their arguments says of what: a descriptor, a path's address in
# the process's memory, or a process.
CALLS = {
    "x86_64": {0: ("read", 0), 17: ("read", 0), 19: ("read", 0), 42: ("connect", 0), 43: ("accept", 0), 45: ("read", 0),
               47: ("read", 0), 288: ("accept", 0), 2: ("open", 0), 257: ("open", 1), 61: ("end", 0), 247: ("end", 1)},
    "aarch64": {63: ("read", 0), 67: ("read", 0), 65: ("read", 0), 203: ("connect", 0), 202: ("accept", 0),
                207: ("read", 0), 212: ("read", 0), 242: ("accept", 0), 56: ("open", 1), 260: ("end", 0),
                95: ("end", 1)},
}  # fmt: skip
MAX_PATH = 4096
MAX_THREADS = 64
MAX_HELD = 5
LOCK_FILE = ("lock", ".lck")
HOMES = ("/serve.lock", "/console.lock")  # an appliance's own, held as long as it runs
MAX_PROCESSES = 4096
LOCKS = Path("/proc/locks")
# 3: -> FLOCK  ADVISORY  WRITE 1234 fe:00:3211641 0 EOF
LOCK = re.compile(
    r"(?P<number>\d{1,9}): (?P<waits>-> )?\S{1,20} {1,9}\S{1,20} {1,9}\S{1,20} {1,9}(?P<pid>-?\d{1,9}) "
    r"(?P<major>[0-9a-f]{1,9}):(?P<minor>[0-9a-f]{1,9}):(?P<inode>\d{1,20}) "
)
OF_ANY_THREAD = ("Waits for the file ", "Waits for the other end of ", "Waits for the GPU ")
CONNECTING = "Waits for a connection to "
UNANSWERED, LISTENING = "02", "0A"  # states of a socket, as the kernel writes them
ANY_CHILD = 1 << 31  # it waits for whichever ends: -1, as the kernel shows it
GPU_DEVICES = ("/dev/nvidia", "/dev/dri/", "/dev/kfd")
MAX_SOCKETS = 20_000


class Lock(NamedTuple):
    """`device` is its file system's: an inode's number means nothing in another."""

    number: str
    waits: bool
    pid: int
    device: int
    inode: int


def waits_of(pid: int) -> list[str]:
    """A line each."""
    calls = list(_calls(pid))
    return [*_awaited_locks(pid), *calls, *(line for line in _connecting(pid) if line not in calls)]


def held_locks() -> list[str]:
    """The lock files that processes of this machine hold, a line each, the newest first: who tries for one again and
    again does not wait for it in the kernel."""
    held = [(lock, _open_file(lock.pid, lock)) for lock in _locks() if not lock.waits]
    files = [(lock, path) for lock, path in held if path and path.endswith(LOCK_FILE) and not path.endswith(HOMES)]
    files.sort(key=lambda found: _changed(found[1]), reverse=True)
    return [f"Lock on {path}, held by process {lock.pid}" for lock, path in files[:MAX_HELD]]


def _changed(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _locks() -> list[Lock]:
    try:
        lines = LOCKS.read_text().splitlines()
    except OSError:
        return []
    found = (LOCK.match(line) for line in lines)
    return [
        Lock(
            number=lock["number"],
            waits=bool(lock["waits"]),
            pid=int(lock["pid"]),
            device=os.makedev(int(lock["major"], 16), int(lock["minor"], 16)),
            inode=int(lock["inode"]),
        )
        for lock in found
        if lock
    ]


def _awaited_locks(pid: int) -> Iterator[str]:
    """A waiting request has the number of the lock that another process holds."""
    found = _locks()
    holders = {lock.number: lock.pid for lock in found if not lock.waits}
    for lock in found:
        if lock.waits and lock.pid == pid:
            path = _open_file(pid, lock) or f"inode {lock.inode}"
            yield f"Waits for the lock on {path}, held by process {holders.get(lock.number, '?')}"


def _open_file(pid: int, lock: Lock) -> str | None:
    with contextlib.suppress(OSError):
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                file = handle.stat()
                if file.st_ino == lock.inode and lock.device in (file.st_dev, _mounted_device(pid, handle.name)):
                    return os.readlink(handle)
    return None


def _mounted_device(pid: int, descriptor: str) -> int | None:
    """Of the file system that a descriptor's file is on, as locks name it: btrfs gives its files another in stat."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        mount = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text().partition("mnt_id:")[2].split()[0]
        for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
            number, _, device, *_ = line.split()
            if number == mount:
                major, minor = map(int, device.split(":"))
                return os.makedev(major, minor)
    return None


def _calls(pid: int) -> Iterator[str]:
    """What the system calls of its threads wait for, the main thread's first. Of the others only what no thread waits
    for when all is well: idle ones wait for sockets, pipes and children."""
    with contextlib.suppress(OSError):
        others = sorted(int(task.name) for task in Path(f"/proc/{pid}/task").iterdir())
        for thread in (pid, *(other for other in others[:MAX_THREADS] if other != pid)):
            said = _call(pid, thread)
            if said is not None and (thread == pid or said.startswith(OF_ANY_THREAD)):
                yield said


def _call(pid: int, thread: int) -> str | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        number, *arguments = Path(f"/proc/{pid}/task/{thread}/syscall").read_text().split()
        call, which = CALLS.get(platform.machine(), {}).get(int(number), ("", 0))
        argument = int(arguments[which], 16) if call else 0
        if call == "open":
            return _opening(os.path.join(os.readlink(f"/proc/{pid}/cwd"), _text_at(pid, argument)))
        if call == "end":
            return f"Waits for process {argument} to end" if 0 < argument < ANY_CHILD else None
        if call:
            return _in_words(pid, call, os.readlink(f"/proc/{pid}/fd/{argument}"))
    return None


def _text_at(pid: int, address: int) -> str:
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(MAX_PATH).partition(b"\0")[0].decode(errors="replace")


def _opening(path: str) -> str:
    with contextlib.suppress(OSError):
        if stat.S_ISFIFO(Path(path).stat().st_mode):
            return f"Waits for the other end of the pipe {path} to be opened{_unopened(path)}"
    return f"Waits for the file {path} to open"


def _unopened(path: str) -> str:
    return "" if any(True for _ in _holders(os.path.realpath(path))) else ", which no process has open"


def _in_words(pid: int, call: str, link: str) -> str:
    if link.startswith("socket:["):
        inode = link[len("socket:[") : -1]
        what = {"connect": "a connection to", "accept": "connections at"}.get(call, "data from")
        return f"Waits for {what} {_address(pid, inode)}{_with(_other_side(pid, inode))}"
    if link.startswith("pipe:["):
        return f"Waits for data from a pipe{_with(_writers(pid, link))}"
    if link.startswith(GPU_DEVICES):
        return f"Waits for the GPU at {link}"
    return f"Waits for the file {link}"


def _connecting(pid: int) -> Iterator[str]:
    """Connections that nobody has answered yet, of whichever thread: a library may wait for one with poll()."""
    links = set(_open_links(pid))
    for name in ("tcp", "tcp6"):
        for fields in _sockets(pid, name):
            if len(fields) > 9 and fields[3] == UNANSWERED and f"socket:[{fields[9]}]" in links:
                yield f"{CONNECTING}{_address(pid, fields[9])}{_with_listener(pid, fields[2])}"


def _open_links(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                yield os.readlink(handle)


def _with_listener(pid: int, address: str) -> str:
    """Who listens at that address, within this machine."""
    port = address.rpartition(":")[2]
    listening = (f for name in ("tcp", "tcp6") for f in _sockets(pid, name) if len(f) > 9 and f[3] == LISTENING)
    inode = next((fields[9] for fields in listening if fields[1].endswith(f":{port}")), None)
    local = _host_and_port(address).startswith(("127.", "[::1]"))
    holder = next((holder for holder, _ in _holders(f"socket:[{inode}]")), None) if inode and local else None
    return f", at which process {holder} listens" if holder is not None else ""


def _with(holders: list[int]) -> str:
    return f", whose other end process {holders[0]} has" if holders else ""


def _writers(pid: int, link: str) -> list[int]:
    """Who else can write to a pipe; children that inherited the reader's own end can as well, and come last."""
    found = [other for other, flags in _holders(link) if flags & os.O_ACCMODE != os.O_RDONLY]
    return [other for other in found if other != pid]


def _other_side(pid: int, inode: str) -> list[int]:
    """Who has the other end of a connection within this machine."""
    for name in ("tcp", "tcp6"):
        sockets = [fields for fields in _sockets(pid, name) if len(fields) > 9]
        own = next((fields for fields in sockets if fields[9] == inode), None)
        if own is not None:
            other = next((f[9] for f in sockets if (f[1], f[2]) == (own[2], own[1]) and f[9] != "0"), None)
            return [holder for holder, _ in _holders(f"socket:[{other}]") if holder != pid] if other else []
    return []


def _holders(link: str) -> Iterator[tuple[int, int]]:
    """The processes that have it open, with the flags it was opened with."""
    processes = (entry for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    for process in islice(processes, MAX_PROCESSES):
        with contextlib.suppress(OSError):
            for handle in (process / "fd").iterdir():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    if os.readlink(handle) == link:
                        info = (process / "fdinfo" / handle.name).read_text()
                        yield int(process.name), int(info.partition("flags:")[2].split()[0], 8)


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
    parts = [bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8)]
    number = ipaddress.ip_address(b"".join(parts))
    mapped = number.ipv4_mapped if isinstance(number, ipaddress.IPv6Address) else None
    address = f"[{number}]" if number.version == 6 and mapped is None else str(mapped or number)
    return f"{address}:{int(port, 16)}"
