"""What is installed in one Python, read from its files: nothing is imported, so that another Python's can be read too,
and torch costs milliseconds."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from email.parser import HeaderParser
from functools import cached_property
from pathlib import Path

Version = tuple[int, ...]

_RELEASE = re.compile(r"\d+(?:\.\d+)*")
_TORCH_CUDA = re.compile(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)['\"]", re.MULTILINE)
_TORCH_VERSION = re.compile(r"^__version__\s*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)
_CUDA_TAG = re.compile(r"\+cu(\d+)(\d)\b")
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)\s*\(?([^;)]*)\)?\s*(?:;(.*))?$")


@dataclass(frozen=True)
class Distribution:
    """One installed distribution; `installed` is when, in seconds since the epoch."""

    name: str
    version: str
    folder: Path

    def metadata(self, file: str) -> HeadersOf:
        return HeadersOf(_text(self.folder / file))

    @property
    def installed(self) -> float | None:
        try:
            return self.folder.stat().st_mtime
        except OSError:
            return None


class HeadersOf:
    """The headers of METADATA or WHEEL; none where the file cannot be read."""

    def __init__(self, text: str) -> None:
        self._message = HeaderParser().parsestr(text.partition("\n\n")[0])

    def all(self, name: str) -> list[str]:
        return [str(value) for value in self._message.get_all(name, [])]


@dataclass(frozen=True)
class Packages:
    """`folders` are searched in order, as Python searches sys.path."""

    folders: tuple[Path, ...]

    @classmethod
    def of(cls, python: Path) -> Packages:
        """Those of the Python at `python`. Nothing is found where that is no Python but a wrapper of its own."""
        base = python.parent.parent
        patterns = ("lib/python3*/site-packages", "lib/python3*/dist-packages", "lib64/python3*/site-packages")
        return cls(tuple(dict.fromkeys(path.resolve() for pattern in patterns for path in sorted(base.glob(pattern)))))

    @cached_property
    def distributions(self) -> dict[str, Distribution]:
        """By name, in lower case with dashes."""
        found: dict[str, Distribution] = {}
        for folder in self.folders:
            try:
                entries = sorted(folder.glob("*.dist-info"))
            except OSError:
                continue
            for entry in entries:
                name, _, version = entry.name.removesuffix(".dist-info").partition("-")
                key = re.sub(r"[-_.]+", "-", name).lower()
                found.setdefault(key, Distribution(key, version, entry))
        return found

    def version(self, name: str) -> str | None:
        found = self.distributions.get(name)
        return found.version if found else None

    def file(self, relative: str) -> Path | None:
        """A file of a package, such as `torch/version.py`."""
        for folder in self.folders:
            path = folder / relative
            try:
                if path.exists():
                    return path
            except OSError:
                continue
        return None

    def text(self, relative: str) -> str:
        """Empty if there is no such file."""
        path = self.file(relative)
        return _text(path) if path else ""

    @cached_property
    def torch(self) -> Torch | None:
        """None where no torch is installed."""
        text = self.text("torch/version.py")
        version = _TORCH_VERSION.search(text)
        listed = self.version("torch")
        if version is None and listed is None:
            return None
        full = version[1] if version else str(listed)
        cuda = _TORCH_CUDA.search(text)
        if cuda:
            return Torch(full, release(cuda[1])[:2])
        tag = _CUDA_TAG.search(full)
        return Torch(full, (int(tag[1]), int(tag[2])) if tag else None, told=bool(text or tag or "+cpu" in full))

    def lacks_bytecode(self, package: str) -> bool:
        """Whether each process would compile the package's modules: none is compiled, and this user may not write them.
        False where there is no such package."""
        place = self.file(f"{package}/__init__.py")
        if place is None:
            return False
        compiled = place.parent / "__pycache__"
        return not any(compiled.glob("__init__.*.pyc")) and not os.access(place.parent, os.W_OK)

    @cached_property
    def flashinfer_modules(self) -> tuple[str, ...]:
        """The modules that FlashInfer's package has compiled, and loads before it compiles any."""
        place = self.file("flashinfer/data/aot")
        return tuple(sorted(library.stem for library in place.glob("*/*.so"))) if place else ()

    def requirement(self, name: str, of: str) -> str | None:
        """What the distribution `of` asks of the version of `name`, such as "==2.13.0"; markers are not weighed, so a
        requirement that is listed twice is unknown."""
        holder = self.distributions.get(of)
        if holder is None:
            return None
        wanted = set()
        for line in holder.metadata("METADATA").all("Requires-Dist"):
            match = _REQUIREMENT.match(line)
            if match and re.sub(r"[-_.]+", "-", match[1]).lower() == name and "extra" not in (match[3] or ""):
                wanted.add(match[2].strip())
        return wanted.pop() if len(wanted) == 1 else None


@dataclass(frozen=True)
class Torch:
    """`cuda` is the CUDA that it was built for; None for a build without. `told` is False where that is not known."""

    version: str
    cuda: Version | None
    told: bool = True


def release(version: str) -> Version:
    """The numbers that a version begins with: "3.6.0.post1" and "3.6.0+cu130" are both (3, 6, 0)."""
    match = _RELEASE.match(version)
    return tuple(int(part) for part in match[0].split(".")[:6] if len(part) < 10) if match else ()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except (OSError, ValueError):
        return ""
