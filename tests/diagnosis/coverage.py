"""`make diagnosis-coverage`: how many of the places where vLLM raises during a start have a specific answer.

Each place's message is made up from its template, logged as vLLM logs it, and diagnosed. INGOT_VLLM names the vLLM
whose source is read; INGOT_VLLM_SOURCE a folder that holds the package alone, such as an unpacked wheel.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from appliance.diagnosis.axes import CHECK_FAILED, ERROR_REPORTED
from appliance.diagnosis.blamed_setting import UNRECOGNISED
from appliance.diagnosis.causes import CATALOGUE
from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.log_text import number_lines
from appliance.diagnosis.raise_sites.areas import Area, area_of, contradicts
from appliance.diagnosis.raise_sites.harvest import harvest
from appliance.diagnosis.raise_sites.install import DISTRIBUTIONS, ENGINE, NotInstalledError, index_of
from appliance.diagnosis.raise_sites.lookup import NO_SITES, RaiseSites
from appliance.diagnosis.raise_sites.site import Index, RaiseSite, make_index
from appliance.packages import Packages
from appliance.protocol import Diagnosis, Outcome
from appliance.vllm_program import find_program

GOAL_PLACED = 0.95
GOAL_PLACED_BARE = 0.9
GOAL_SPECIFIC = 0.5
GOAL_OTHER_FAMILY = 0.02
GOAL_LOOKUP_MS = 50.0
PREFIX = "(EngineCore pid=4711) ERROR 11-20 10:00:09 [core.py:1210] "
STARTED = (
    "(APIServer pid=4680) INFO 11-20 10:00:00 [utils.py:233] vLLM API server version {version}\n"
    "(EngineCore pid=4711) INFO 11-20 10:00:08 [core.py:101] Initializing a V1 LLM engine\n"
)
FRAMES = (("vllm/v1/engine/core.py", 1201, "run_engine_core", "engine_core = EngineCoreProc(*args, **kwargs)"),)
# What stands in a gap, by what its name ends in.
VALUES = (
    (("size", "num", "len", "length", "rank", "count", "tokens", "heads", "dim", "bits", "idx", "id", "blocks",
      "layers", "experts", "seqs", "world", "port", "limit", "max", "min", "width", "height", "version"), "24"),
    (("dtype", "type"), "torch.float64"),
    (("path", "dir", "file", "folder", "root"), "/srv/odd/thing.json"),
    (("shape",), "torch.Size([3, 24])"),
    (("backend", "method", "quantization"), "ODDITY"),
    (("e", "exc", "err", "error", "exception"), "something odd"),
)  # fmt: skip


# Causes that say no more than that a check failed or an error was reported.
GENERAL = (CHECK_FAILED.name, ERROR_REPORTED.name)


class Answer(NamedTuple):
    site: RaiseSite
    area: Area
    found: Diagnosis

    @property
    def placed(self) -> bool:
        """It says whose error it is and of which family, and not by the wording alone."""
        found = self.found
        if found.outcome is not Outcome.FAILED or found.family is None or found.cause in (None, UNRECOGNISED):
            return False
        return found.fix is not None and (found.family, found.cause) not in VAGUE

    @property
    def specific(self) -> bool:
        """It says what happened, too, and what to do about that."""
        return self.placed and not str(self.found.cause).endswith(GENERAL)

    @property
    def by_row(self) -> bool:
        return (self.found.family, self.found.cause) in ROWS

    @property
    def contradicted(self) -> bool:
        """Its family can hardly be that of the place."""
        return self.found.family is not None and contradicts(self.found.family, self.area)


ROWS = {(cause.family, cause.name) for cause in CATALOGUE}
VAGUE = ROWS - {(cause.family, cause.name) for cause in CATALOGUE if not cause.vague}


def index_of_source() -> Index:
    """Of the vLLM that INGOT_VLLM names, or of the package in the folder that INGOT_VLLM_SOURCE names."""
    unpacked = os.environ.get("INGOT_VLLM_SOURCE")
    if unpacked is not None:
        versions = Packages((Path(unpacked),)).distributions
        version = next((versions[name].version for name in DISTRIBUTIONS if name in versions), "")
        return make_index(ENGINE, version, harvest(Path(unpacked) / ENGINE))
    program = find_program(os.environ)
    if program is None:
        sys.exit("There is no vLLM to read. INGOT_VLLM names its command, INGOT_VLLM_SOURCE a folder with its package.")
    try:
        return index_of(program.python)
    except NotInstalledError as error:
        sys.exit(str(error))


def reached_in_a_start(sites: Iterable[RaiseSite]) -> Iterator[tuple[RaiseSite, Area]]:
    """Not what belongs to a request or another program, nor methods that a class leaves to others."""
    for site in sites:
        area = area_of(site)
        if area is not None and area.reach == "start" and any(part.strip() for part in site.parts):
            yield site, area


def message_of(site: RaiseSite) -> str:
    parts = [site.parts[0]]
    for gap, part in zip(site.gaps, site.parts[1:], strict=True):
        last = gap.lower().rpartition("_")[2]
        parts += [next((value for ends, value in VALUES if last in ends), "oddity"), part]
    return "".join(parts)


def log_of(site: RaiseSite, version: str, *, traceback: bool) -> str:
    """As vLLM's core logs it: the whole traceback, or the exception's line alone."""
    message = message_of(site)
    head = STARTED.format(version=version)
    if site.kind == "log":
        place = f"[{site.module.rpartition('/')[2]}:{site.line}] "
        return head + _prefixed(message, PREFIX.partition("[")[0] + place)
    if site.kind == "exit":
        return f"vllm serve: error: {message}\n"
    kind = site.type or "RuntimeError"
    ended = f"{kind}: {message}"
    if site.module.startswith("vllm/config/") and kind in ("ValueError", "AssertionError") and "." in site.scope:
        lead = "Value error" if kind == "ValueError" else "Assertion failed"
        config = site.scope.partition(".")[0]
        ended = (
            f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {config}\n"
            f"  {lead}, {message} [type=value_error, input_value={{'model': '/m'}}, input_type=dict]"
        )
    if not traceback:
        return head + _prefixed(ended)
    scope = site.scope.rpartition(".")[2] or "<module>"
    frames = [*FRAMES, (site.module, site.line, scope, f"raise {kind}(")]
    lines = ["EngineCore failed to start.", "Traceback (most recent call last):"]
    for module, line, function, code in frames:
        lines += [
            f'  File "/opt/vllm/lib/python3.12/site-packages/{module}", line {line}, in {function}',
            f"    {code}",
        ]
    return head + _prefixed("\n".join([*lines, ended]))


def _prefixed(text: str, prefix: str = PREFIX) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.split("\n"))


def answers(index: Index, sites: RaiseSites, *, traceback: bool) -> list[Answer]:
    return [
        Answer(
            site,
            area,
            diagnose(number_lines(log_of(site, index.version, traceback=traceback)), failed=True, sites=sites),
        )
        for site, area in reached_in_a_start(index.sites)
    ]


def specific(told: Sequence[Answer]) -> float:
    return sum(answer.specific for answer in told) / max(len(told), 1)


def placed(told: Sequence[Answer]) -> float:
    return sum(answer.placed for answer in told) / max(len(told), 1)


def contradicted(told: Sequence[Answer]) -> float:
    return sum(answer.contradicted for answer in told) / max(len(told), 1)


def slowest_lookup_ms(index: Index) -> float:
    """Milliseconds for a text that holds as many of the templates' words as it may: the mean over all of them."""
    sites = RaiseSites(lambda: index)
    text = " ".join(dict.fromkeys(word for site in index.sites for part in site.parts for word in part.split()))
    sites.find(text)
    began = time.process_time()
    for at in range(0, 40_000, 4000):
        sites.find(text[at:])
    return (time.process_time() - began) * 1000 / 10


def show(without: Sequence[Answer], told: Sequence[Answer], bare: Sequence[Answer]) -> None:
    table = Table(
        "owner",
        "places",
        "specific without the index",
        "specific",
        "placed",
        "placed without a traceback",
        "by a row",
        "of another family",
    )
    places = Counter(answer.area.owner for answer in told)
    for owner, count in [*places.most_common(), ("all", len(told))]:
        before, now, alone = (
            [one for one in rows if owner in ("all", one.area.owner)] for rows in (without, told, bare)
        )
        rows = [one for one in now if one.by_row]
        other = sum(one.contradicted for one in rows)
        shares = [f"{figure:.0%}" for figure in (specific(before), specific(now), placed(now), placed(alone))]
        table.add_row(owner, f"{count:,}", *shares, f"{len(rows):,}", f"{other:,}")
    Console(width=130).print(table)


def main() -> None:
    index = index_of_source()
    sites = RaiseSites(lambda: index)
    without = answers(index, NO_SITES, traceback=True)
    told, bare = (answers(index, sites, traceback=traceback) for traceback in (True, False))
    show(without, told, bare)
    other = contradicted(told)
    slowest = slowest_lookup_ms(index)
    figures: dict[str, dict[str, Any]] = {
        "placed": {"value": round(placed(told), 4), "goal": GOAL_PLACED, "ok": placed(told) >= GOAL_PLACED},
        "placed-without-traceback": {
            "value": round(placed(bare), 4), "goal": GOAL_PLACED_BARE, "ok": placed(bare) >= GOAL_PLACED_BARE,
        },
        "specific": {"value": round(specific(told), 4), "goal": GOAL_SPECIFIC, "ok": specific(told) >= GOAL_SPECIFIC},
        "of-another-family": {
            "value": round(other, 4), "goal": GOAL_OTHER_FAMILY, "ok": other <= GOAL_OTHER_FAMILY,
        },
        "slowest-lookup-ms": {"value": round(slowest, 1), "goal": GOAL_LOOKUP_MS, "ok": slowest <= GOAL_LOOKUP_MS},
    }  # fmt: skip
    print(json.dumps(figures))
    sys.exit(0 if all(figure["ok"] for figure in figures.values()) else 1)


if __name__ == "__main__":
    main()
