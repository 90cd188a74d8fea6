"""What a profile's last good launch of vLLM left compiled, and of what it was compiled."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from appliance.engines import engine_named
from appliance.home import Home
from appliance.launches.catalogue import LOOKED_BACK, Catalogue
from appliance.profile import document as documents
from appliance.profile.chosen import NoSuchProfileError, chosen_document
from appliance.profile.schema import ProfileError
from appliance.vllm.cache_packs import record
from appliance.vllm.cache_packs.facts import Facts
from appliance.vllm.cache_packs.pack import PackError, PackFolder
from appliance.vllm.cache_packs.store import folders, packs
from appliance.vllm.cache_packs.working_copy import place_of
from appliance.vllm.command_line import Place


@dataclass(frozen=True)
class Launched:
    """`caches` is where the launch compiled, `cold_s` how long the slowest good one like it took to become ready, here
    or where the pack that it used was made."""

    profile: str
    caches: Path
    cold_s: float
    facts: Facts

    @property
    def default_name(self) -> str:
        """The profile's, and what tells its packs apart."""
        return f"{self.profile}-{hashlib.sha256(msgspec.json.encode(self.facts)).hexdigest()[:8]}"


def last_launch(source: str | None, home: Home) -> Launched:
    """Of the profile in the file `source`, or of the active one: as its launch wrote it down, for what is installed or
    set here by now may be another.

    Raises:
        PackError: it is not for vLLM, or has not become ready as it stands, or other versions have compiled into the
            same caches since.
    """
    try:
        document = chosen_document(source, home)
    except (NoSuchProfileError, ProfileError) as error:
        raise PackError("profile", f"{error}") from error
    if not engine_named(document.get("engine")).caches_in_home:
        raise PackError(
            "engine", "the native engine's kernels are compiled ahead and need no pack; choose a profile for vLLM"
        )
    name = str(document.get("name"))
    good = list(_good_launches(home, document))
    if not good:
        raise PackError(
            "not-launched",
            f"{name} has not become ready as it stands; start it once with this Ingot, on a model in safetensors, then "
            "make the pack",
        )
    newest = good[0].compiled
    if (other := _compiled_since(home, good[0])) is not None:
        raise PackError(
            "other-versions",
            f"after {name} last became ready, launch {other} has compiled into the same caches with other versions; "
            f"start {name} again, then make the pack",
        )
    caches = Place.below(home).caches.with_name(newest.caches)
    took_s = [one.ready_s for one in good if one.compiled.facts == newest.facts]
    for pack in packs(folders(home)):
        if isinstance(pack, PackFolder) and place_of(pack, caches.parent) == caches:
            took_s.append(pack.pack.cold_s)
    return Launched(name, caches, max(took_s), newest.facts)


class _Good(NamedTuple):
    """A launch that became ready after `ready_s`."""

    id: str
    compiled: record.Compiled
    ready_s: float


def _good_launches(home: Home, document: Mapping[str, object]) -> Iterator[_Good]:
    """Those of the profile as it stands that became ready, the newest first."""
    for folder, launch in Catalogue(home).newest(LOOKED_BACK):
        if launch.profile != document.get("name") or launch.ready_after_s is None:
            continue
        try:
            launched = documents.parse(folder.profile.read_bytes())
        except (OSError, ProfileError):
            continue
        if launched == document and (compiled := record.read(folder)) is not None:
            yield _Good(folder.id, compiled, launch.ready_after_s)


def _compiled_since(home: Home, good: _Good) -> str | None:
    """A later launch, of whatever profile and ready or not, that kept what other versions compile in the same caches:
    its files cannot be told from those of `good`."""
    for folder in Catalogue(home).folders():
        if folder.id == good.id:
            return None
        later = record.read(folder)
        if (
            later is not None
            and later.caches == good.compiled.caches
            and later.facts.versions != good.compiled.facts.versions
        ):
            return folder.id
    return None
