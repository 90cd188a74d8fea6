"""Finds the place in an engine's source that a message comes from: by its literal parts, in their order."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from appliance.diagnosis.raise_sites.areas import Area, area_of
from appliance.diagnosis.raise_sites.install import installed_index
from appliance.diagnosis.raise_sites.site import SPACE, WORD, Index, RaiseSite
from appliance.diagnosis.searchable import Searchable
from appliance.diagnosis.stripping import without_dumps

MAX_TEXT = 4000
MAX_VALUE = 200
# So many letters and words in order stand in no other message. With fewer, a template has to be the whole message, or
# the message has to come from its file.
CERTAIN_LETTERS, CERTAIN_WORDS = 25, 4
LEAST_LETTERS, LEAST_WORDS = 8, 2
# How long a value is that stands before the first word, or after the last, of a whole message.
SHORT = 60
# What Python raises in engines' checks without a message.
SILENT = ("AssertionError", "NotImplementedError")
PRINTED_SIGNS = (b"vllm api server version", b"llm engine (v", b"vllm version")
PRINTED = re.compile(
    r"(?:vLLM (?:API server )?version:? {1,4}|LLM engine \(v)(?P<version>v?\d[\w.+]{0,60})", re.IGNORECASE
)
MAX_PRINTED = 5
LETTER = re.compile(r"[A-Za-z]")
FRAME = re.compile(r'File "(?P<path>[^"\n]{1,400})", line (?P<line>\d{1,9})')


class FoundSite(NamedTuple):
    """`captured` are the values that the message holds, by the names that the source has for them. `certain`: it is
    known by more than a few words. `unique`: no other place says the same."""

    site: RaiseSite
    area: Area
    captured: Mapping[str, str]
    certain: bool
    unique: bool
    engine: str
    version: str


class _Known(NamedTuple):
    """A site as it is searched for."""

    site: RaiseSite
    letters: int
    enough: bool
    certain: bool


class _Candidate(NamedTuple):
    rank: tuple[bool, bool, int, bool]
    known: _Known
    captured: dict[str, str]


class RaiseSites:
    """Of one installation. Its index is read when a message is looked up for the first time."""

    def __init__(self, read: Callable[[], Index | None], printed: str | None = None) -> None:
        """`printed` is the version that the log prints, None where it prints none."""
        self._read = read
        self._printed = printed

    def for_log(self, log: Searchable) -> RaiseSites:
        """For an engine of the version that the log prints. Another version's words may be the same; its lines are
        not."""
        return RaiseSites(lambda: self._index, printed_version(log))

    @functools.cached_property
    def _index(self) -> Index | None:
        return self._read()

    @functools.cached_property
    def _by_place(self) -> Mapping[tuple[str, int], RaiseSite]:
        return {(site.module, site.line): site for site in (self._index.sites if self._index is not None else ())}

    def find(self, text: str, kind: str = "", places: Sequence[str] = ()) -> FoundSite | None:
        """Where `text` comes from; `kind` is its exception's type, and `places` its traceback's, the innermost last."""
        if self._index is None:
            return None
        said = SPACE.sub(" ", without_dumps(text[:MAX_TEXT]))
        same = self._printed is None or _release(self._printed) == _release(self._index.version)
        innermost = _innermost(places, self._index.engine) if same else ("", 0)
        name = kind.rpartition(".")[2]
        candidates = list(self._candidates(said, kind, innermost))
        best = max((candidate.rank for candidate in candidates), default=None)
        chosen = [candidate for candidate in candidates if candidate.rank == best]
        if not same and not (chosen and chosen[0].known.certain):
            return None
        if chosen:
            areas = {area_of(candidate.known.site) for candidate in chosen}
            exact = chosen[0].rank[1] or chosen[0].known.certain
            return self._found(chosen[0].known.site, areas, chosen[0].captured, exact, same and len(chosen) == 1)
        site = self._by_place.get(innermost)
        if site is None and innermost[0] and name in SILENT and said.rstrip() == kind:
            site = RaiseSite(innermost[0], "", innermost[1], "raise", name, (), ())
        if site is None or site.type != name:
            return None
        return self._found(site, {area_of(site)}, {}, True, True)

    def _candidates(self, said: str, kind: str, innermost: tuple[str, int]) -> Iterator[_Candidate]:
        begins = len(kind) + 2 if kind and said.startswith(f"{kind}: ") else 0
        index = self._index
        if index is None:
            return
        for word in sorted(index.words.keys() & set(WORD.findall(said))):  # of equals, always the same
            for position in index.words[word]:
                site = index.sites[position]
                captured = _match(site, said, begins)
                if captured is None:
                    continue
                known = _known(site)
                here = site.module == innermost[0]
                exact = here and site.line == innermost[1]
                short = known.enough and (here or _is_whole(known, said[begins:], captured))
                if known.certain or exact or short:
                    rank = (exact, here, known.letters, site.type == kind.rpartition(".")[2])
                    yield _Candidate(rank, known, {name: value for name, value in captured if name})

    def _found(
        self, site: RaiseSite, areas: set[Area | None], captured: Mapping[str, str], certain: bool, unique: bool
    ) -> FoundSite | None:
        """None where several that fit as well belong to different areas, or to none that a start reaches."""
        area = next((one for one in areas if one is not None and one.reach == "start"), None)
        if area is None or self._index is None or len({(one.owner, one.family) if one else None for one in areas}) > 1:
            return None
        return FoundSite(site, area, captured, certain, unique, self._index.engine, self._index.version)


NO_SITES: Final = RaiseSites(lambda: None)


def installed_sites() -> RaiseSites:
    """Those of the vLLM that this environment would start."""
    return RaiseSites(lambda: installed_index(os.environ))


def printed_version(log: Searchable) -> str | None:
    """Of the engine that wrote it."""
    for sign in PRINTED_SIGNS:
        for position in islice(log.positions(sign), MAX_PRINTED):
            if (found := PRINTED.search(log.lines[position].text[:MAX_TEXT])) is not None:
                return found["version"]
    return None


def _release(version: str) -> str:
    """Without what a build adds, as in 0.32.0+cpu."""
    return version.partition("+")[0].removeprefix("v")


def _known(site: RaiseSite) -> _Known:
    said = " ".join(site.parts)
    letters, words = len(LETTER.findall(said)), len(WORD.findall(said))
    return _Known(
        site=site,
        letters=letters,
        enough=letters >= LEAST_LETTERS and words >= LEAST_WORDS,
        certain=letters >= CERTAIN_LETTERS and words >= CERTAIN_WORDS,
    )


def _match(site: RaiseSite, said: str, begins: int) -> list[tuple[str, str]] | None:
    """The names and values between the parts; None where these do not all stand there, in order."""
    at = begins
    captured = []
    for number, part in enumerate(site.parts):
        start = said.find(part, at)
        if start < 0:
            return None
        if number:
            ends = len(said) if not part and number == len(site.parts) - 1 else start
            captured.append((site.gaps[number - 1], said[at:ends].strip()[:MAX_VALUE]))
        elif start > begins and part[:1].isalnum() and said[start - 1].isalnum():
            return None
        at = start + len(part)
    return captured


def _is_whole(known: _Known, message: str, captured: Sequence[tuple[str, str]]) -> bool:
    """Whether the template is the message from its beginning to its end, and what stands at either is a value."""
    first, last = known.site.parts[0], known.site.parts[-1].rstrip()
    if not message.startswith(first) or not message.rstrip().endswith(last):
        return False
    ends = [captured[at][1] for at, part in ((0, first), (-1, last)) if not part and captured]
    return all(len(value) <= SHORT for value in ends)


def _innermost(places: Sequence[str], engine: str) -> tuple[str, int]:
    """Module and line of the innermost place in the engine's own code."""
    for place in reversed(places):
        found = FRAME.search(place)
        if found is None or (at := found["path"].rfind(f"/{engine}/")) < 0:
            continue
        module = found["path"][at + 1 :]
        if "-packages/" not in module:  # else the environment's folder has the engine's name
            return module, int(found["line"])
    return "", 0
