"""One place in an engine's source that ends a start or reports an error, and the index of all of them."""

from __future__ import annotations

import gzip
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

FORMAT: Final = 1
MAX_BYTES: Final = 32 << 20
WORD: Final = re.compile(r"[A-Za-z]{3,40}")
SPACE: Final = re.compile(r"\s{1,200}")

Kind = Literal["raise", "assert", "log", "exit"]


class RaiseSite(msgspec.Struct, frozen=True, array_like=True):
    """`module` is its path below the site-packages, `scope` the function with the classes around it. `type` is empty
    where nothing is raised, or not by name. `parts` are the literal parts of the message, in order and with single
    spaces, and `gaps` the name of the value between each two of them, empty where that has none. `when` are the names
    in the conditions around it, the innermost first: what decides whether it comes to this."""

    module: str
    scope: str
    line: int
    kind: Kind
    type: str
    parts: tuple[str, ...]
    gaps: tuple[str, ...]
    when: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return f"{self.module}:{self.line} in {self.scope}" if self.scope else f"{self.module}:{self.line}"


class Index(msgspec.Struct, frozen=True):
    """Of one engine in one version. `words` holds the positions of the sites under the rarest word of each."""

    format: int
    engine: str
    version: str
    sites: tuple[RaiseSite, ...]
    words: dict[str, tuple[int, ...]]


def make_index(engine: str, version: str, sites: Iterable[RaiseSite]) -> Index:
    """Of those that say something."""
    speaking = tuple(site for site in sites if any(map(WORD.search, site.parts)))
    words = [set(_whole_words(site.parts)) for site in speaking]
    common = Counter(word for own in words for word in own)
    positions: dict[str, list[int]] = defaultdict(list)
    for position, own in enumerate(words):
        if own:
            positions[min(own, key=lambda word: (common[word], word))].append(position)
    by_word = {word: tuple(found) for word, found in positions.items()}
    return Index(FORMAT, engine, version, speaking, by_word)


def _whole_words(parts: Sequence[str]) -> Iterator[str]:
    """Without those that a value next to them may continue."""
    for number, part in enumerate(parts):
        for word in WORD.finditer(part):
            begins = number > 0 and word.start() == 0
            ends = number < len(parts) - 1 and word.end() == len(part)
            if not begins and not ends:
                yield word[0]


def index_file(prefix: Path, engine: str, version: str) -> Path:
    """Beside the installation that it describes; `prefix` is that of its Python."""
    return prefix / "share" / "ingot" / f"{engine}-{version}-raise-sites.json.gz"


def write_index(path: Path, index: Index) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(msgspec.json.encode(index), mtime=0))


def read_index(path: Path) -> Index | None:
    """None where there is none, or none that this release understands."""
    try:
        with gzip.open(path) as file:
            index = msgspec.json.decode(file.read(MAX_BYTES), type=Index)
    except (OSError, EOFError, msgspec.MsgspecError):
        return None
    return index if index.format == FORMAT else None
