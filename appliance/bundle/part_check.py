"""Which part of a bundle is at fault: missing, of another size, damaged, or in another's place."""

from __future__ import annotations

import threading

from appliance.bundle.copying import Copier, Progress, Report, silent
from appliance.bundle.errors import BundleError
from appliance.bundle.manifest import Parts
from appliance.bundle.parts import Joined, part_path


def check_sizes(source: Joined, parts: Parts | None, end: int) -> None:
    """Raises BundleError that names the first part whose size is not what a bundle of `end` bytes has there."""
    first = source.parts[0].path
    if len(source.parts) == 1 and not (parts and first.name.endswith(".001")):  # never cut, or put together again
        _compare(first.name, source.size, end)
        return
    if parts is None:
        raise BundleError(f"{first.name} is of a bundle that was not cut into parts; name that file itself")
    whole = first.with_name(first.name.removesuffix(".001"))
    if -(-end // parts.size) != len(parts.sha256) + 1:
        raise BundleError(f"{first.name} does not know into how many parts it was cut; do not use this bundle")
    expected = [min(parts.size, end - at) for at in range(0, end, parts.size)]
    for number, size in enumerate(expected, 1):
        if number > len(source.parts):
            raise BundleError(
                f"the part {part_path(whole, number).name} is missing: there are {len(expected)}; copy it too"
            )
        _compare(source.parts[number - 1].path.name, source.parts[number - 1].size, size)
    if len(source.parts) > len(expected):
        raise BundleError(
            f"{source.parts[len(expected)].path.name} is no part of this bundle, which has {len(expected)}"
        )


def _compare(name: str, size: int, expected: int) -> None:
    if size < expected:
        raise BundleError(f"{name} has {size} bytes, and {expected} belong there: it ends too early; copy it again")
    if size > expected:
        raise BundleError(f"{name} has {size} bytes, and {expected} belong there; copy it again")


def name_the_bad(
    source: Joined, parts: Parts | None, report: Report = silent, stop: threading.Event | None = None
) -> None:
    """Raises BundleError that names every part but the first which is not what was cut; returns if all are. The whole
    is read once more: `report` counts again from nothing, and `stop` ends it (StoppedError)."""
    if parts is None or len(source.parts) == 1:
        return
    with Copier(Progress(source.size, report).advance, stop) as copier:
        found = [copier.copy(source.read_into, part.start, part.size, None) for part in source.parts]
    said = []
    for place, part in enumerate(source.parts[1:]):
        sha256 = found[place + 1]
        if sha256 == parts.sha256[place]:
            continue
        if sha256 in parts.sha256:
            said.append(
                f"{part.path.name} holds what belongs in {source.parts[parts.sha256.index(sha256) + 1].path.name}"
            )
        elif sha256 == found[0]:
            said.append(f"{part.path.name} is a copy of {source.parts[0].path.name}")
        else:
            said.append(f"{part.path.name} is damaged")
    if said:
        raise BundleError(f"{'; '.join(said)}. Copy {'it' if len(said) == 1 else 'them'} again")
