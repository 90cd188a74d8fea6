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
        raise BundleError("not-a-part", f"{first.name} belongs to a bundle that was not split; use that file instead")
    whole = first.with_name(first.name.removesuffix(".001"))
    if -(-end // parts.size) != len(parts.sha256) + 1:
        raise BundleError("parts", f"{first.name} gives a wrong number of parts; do not use this bundle")
    expected = [min(parts.size, end - at) for at in range(0, end, parts.size)]
    for number, size in enumerate(expected, 1):
        if number > len(source.parts):
            raise BundleError(
                "part-missing", f"part {part_path(whole, number).name} of {len(expected)} is missing; copy it, too"
            )
        _compare(source.parts[number - 1].path.name, source.parts[number - 1].size, size)
    if len(source.parts) > len(expected):
        raise BundleError(
            "not-a-part",
            f"{source.parts[len(expected)].path.name} is not part of this bundle, which has "
            f"{len(expected)} parts; move it away",
        )


def _compare(name: str, size: int, expected: int) -> None:
    if size < expected:
        raise BundleError("incomplete", f"{name} is incomplete: it has {size:,} of {expected:,} bytes; copy it again")
    if size > expected:
        raise BundleError("too-long", f"{name} has {size:,} bytes instead of {expected:,}; copy it again")


def name_the_bad(
    source: Joined, parts: Parts | None, report: Report = silent, stop: threading.Event | None = None
) -> None:
    """Raise a BundleError that names every damaged part except the first; return if there is none. This reads the whole
    bundle again: `report` restarts at zero, and `stop` ends it with StoppedError."""
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
            said.append(f"{part.path.name} has the content of {source.parts[parts.sha256.index(sha256) + 1].path.name}")
        elif sha256 == found[0]:
            said.append(f"{part.path.name} is a copy of {source.parts[0].path.name}")
        else:
            said.append(f"{part.path.name} is damaged")
    if said:
        raise BundleError("damaged", f"{', '.join(said)}; copy {'it' if len(said) == 1 else 'them'} again")
