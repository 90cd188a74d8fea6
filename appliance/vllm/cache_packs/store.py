"""The packs of this machine, and which of them fits a launch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.home import Home
from appliance.vllm.cache_packs.facts import Facts, differences
from appliance.vllm.cache_packs.pack import PackError, PackFolder, read_pack

VARIABLE: Final = "INGOT_CACHE_PACKS"
"""Names further folders of packs, with colons between: what an image brings, and what the site's bundle brought."""

OF_A_PLACE: Final = frozenset({"relative", "not-readable"})
"""Codes of errors that a folder of packs has, rather than a pack."""


def folders(home: Home, environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Where packs lie, the state folder's own first: only its owner writes there."""
    named = environ.get(VARIABLE, "").split(os.pathsep)
    return (home.cache_packs, *(Path(name) for name in named if name))


@dataclass(frozen=True)
class Verdict:
    """A pack, and why a launch cannot use it. `of_model`: it is for the launch's model."""

    folder: PackFolder
    reasons: tuple[str, ...]
    of_model: bool = True

    @property
    def fits(self) -> bool:
        return not self.reasons


@dataclass(frozen=True)
class Judgement:
    """What a launch finds: the pack that it uses, or else the one that comes nearest; packs that cannot be read."""

    chosen: Verdict | None = None
    unreadable: tuple[PackError, ...] = ()

    @property
    def pack(self) -> PackFolder | None:
        return self.chosen.folder if self.chosen is not None and self.chosen.fits else None


def judge(facts: Facts | None, found: Iterable[PackFolder | PackError]) -> Judgement:
    """Which of the packs that were `found` is used by a launch with these `facts`: the first that fits."""
    if facts is None:
        return Judgement()
    verdicts, unreadable = [], []
    for pack in found:
        if isinstance(pack, PackError):
            unreadable.append(pack)
        else:
            of_model = pack.pack.facts.model == facts.model
            verdicts.append(Verdict(pack, tuple(differences(pack.pack.facts, facts)), of_model))
    nearest = min(verdicts, key=lambda verdict: (not verdict.of_model, len(verdict.reasons)), default=None)
    return Judgement(nearest, tuple(unreadable))


def packs(places: tuple[Path, ...]) -> Iterator[PackFolder | PackError]:
    """Every pack, in the order of places and names; an error in place of one that cannot be read."""
    for place in places:
        if not place.is_absolute():
            yield PackError("relative", f"{place} in {VARIABLE} is no whole path; begin it with a slash")
            continue
        try:
            names = sorted(entry.name for entry in os.scandir(place) if entry.is_dir() and entry.name[:1] != ".")
        except FileNotFoundError:  # most machines have none
            continue
        except OSError as error:
            yield PackError(
                "not-readable", f"{place} cannot be read: {error.strerror}; check the path and its permissions"
            )
            continue
        for name in names:
            try:
                yield read_pack(place / name)
            except PackError as error:
                yield error
