"""What the cgroups that this process is in leave it, of version 1 or 2 or of both at once: the smallest limit from its
own group up to the root of what is mounted. Swap does not count."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeVar

from appliance.hardware.container import PROC

Number = TypeVar("Number", int, float)

# Version 1 writes the largest number of pages, in bytes, where there is no limit.
_NO_LIMIT: Final = 1 << 62


class Cgroup(NamedTuple):
    """`memory_left_bytes` may still be taken before a limit is met: pages of files that can be dropped count as free.
    `cpu_quota` is in cores; `processes_left` may still be started, threads counted. None: no limit. `version` is that
    of the memory's group; None where there is none."""

    version: Literal["v1", "v2"] | None = None
    memory_limit_bytes: int | None = None
    memory_left_bytes: int | None = None
    cpu_quota: float | None = None
    max_processes: int | None = None
    processes_left: int | None = None


class _Mount(NamedTuple):
    kind: Literal["v1", "v2"]
    controllers: frozenset[str]
    root: str  # what part of the tree of groups is seen at `point`
    point: Path


def read_cgroup(proc: Path = PROC) -> Cgroup:
    """Never raises: what cannot be read counts as unlimited."""
    mounts, paths = _mounts(proc), _paths(proc)
    processes = _groups("pids", mounts, paths)
    memory = _groups("memory", mounts, paths)
    limits, left = [], []
    for version, folder in memory:
        limit = _memory_limit(version, folder)
        if limit is not None:
            limits.append(limit)
            left.append(max(limit - _memory_held(version, folder), 0))
    return Cgroup(
        version=memory[0][0] if memory else None,
        memory_limit_bytes=min(limits, default=None),
        memory_left_bytes=min(left, default=None),
        cpu_quota=_least(_cpu_quota, _groups("cpu", mounts, paths)),
        max_processes=_least(lambda _, folder: number(folder / "pids.max"), processes),
        processes_left=_least(lambda _, folder: _processes_left(folder), processes),
    )


def own_memory_group(proc: Path = PROC) -> Path | None:
    """The folder of the group that this process's memory is counted in; None where there is none."""
    groups = _groups("memory", _mounts(proc), _paths(proc))
    return groups[0][1] if groups else None


_Group = tuple[Literal["v1", "v2"], Path]


def _groups(controller: str, mounts: list[_Mount], paths: dict[str, str]) -> list[_Group]:
    """The folder of this process's group and those above it, own first."""
    for mount in mounts:
        path = paths.get(controller if mount.kind == "v1" else "")
        if path is None or (mount.kind == "v1" and controller not in mount.controllers):
            continue
        if mount.kind == "v2" and controller in paths:  # this controller is version 1's on this machine
            continue
        return [(mount.kind, folder) for folder in _up(mount, path)]
    return []


def _up(mount: _Mount, path: str) -> Iterator[Path]:
    """A container often sees its own group as the root, whatever the group is called outside."""
    root = mount.root.rstrip("/")
    inside = path[len(root) :].strip("/") if path == root or path.startswith(root + "/") else ""
    folder = mount.point
    parts = [part for part in inside.split("/") if part not in ("", "..")]
    chain = [folder]
    for part in parts:
        folder = folder / part
        chain.append(folder)
    return reversed([folder for folder in chain if os.path.isdir(folder)])


def _memory_limit(version: str, folder: Path) -> int | None:
    if version == "v1":
        limit = number(folder / "memory.limit_in_bytes")
        return None if limit is None or limit >= _NO_LIMIT else limit
    # Beyond `high` a process is not ended, but slowed down until it stands.
    limits = [number(folder / "memory.max"), number(folder / "memory.high")]
    return min((limit for limit in limits if limit is not None), default=None)


def _memory_held(version: str, folder: Path) -> int:
    v1 = version == "v1"
    used = number(folder / ("memory.usage_in_bytes" if v1 else "memory.current")) or 0
    droppable = _statistic(folder / "memory.stat", "total_inactive_file" if v1 else "inactive_file")
    return max(used - droppable, 0)


def _cpu_quota(version: str, folder: Path) -> float | None:
    if version == "v1":
        quota, period = number(folder / "cpu.cfs_quota_us"), number(folder / "cpu.cfs_period_us")
    else:
        words = _words(folder / "cpu.max")
        quota, period = map(_as_number, words) if len(words) == 2 else (None, None)
    return quota / period if quota and period else None


def _processes_left(folder: Path) -> int | None:
    limit = number(folder / "pids.max")
    return None if limit is None else max(limit - (number(folder / "pids.current") or 0), 0)


def _least(read: Callable[[str, Path], Number | None], groups: list[_Group]) -> Number | None:
    return min((value for group in groups if (value := read(*group)) is not None), default=None)


def _mounts(proc: Path) -> list[_Mount]:
    found: list[_Mount] = []
    for line in _lines(proc / "self" / "mountinfo"):
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        version: Literal["v1", "v2"] = "v2" if kind[0] == "cgroup2" else "v1"
        point = Path(fields[4].replace("\\040", " "))
        found.append(_Mount(version, frozenset(kind[2].split(",")), fields[3], point))
    return found


def _paths(proc: Path) -> dict[str, str]:
    """Controller -> this process's group; "" stands for version 2."""
    found: dict[str, str] = {}
    for line in _lines(proc / "self" / "cgroup"):
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        found |= dict.fromkeys(controllers.split(","), path)
    return found


def number(path: Path) -> int | None:
    """The number in the file; None if the file is missing or says `max`."""
    return _as_number(" ".join(_words(path)))


def _as_number(word: str) -> int | None:
    return int(word) if word.isdecimal() and len(word) < 20 else None


def _statistic(path: Path, name: str) -> int:
    found = (line.split() for line in _lines(path))
    return next((_as_number(words[1]) or 0 for words in found if len(words) == 2 and words[0] == name), 0)


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def whole_cores(cores: int, quota: float | None) -> int:
    """Cores that can run at once: a part of one counts as one."""
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))
