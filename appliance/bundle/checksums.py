"""SHA256SUMS: what is signed. One line for every member, in the members' order, as `sha256sum -c` reads it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from appliance.bundle.errors import BundleError
from appliance.bundle.names import CHECKSUMS, clash, is_path

MAX_LINES: Final = 100_000
_LINE: Final = re.compile(r"([0-9a-f]{64})  ([!-~]+)")


def encode(lines: Iterable[tuple[str, str]]) -> bytes:
    """Of (path, SHA-256 in hex)."""
    return "".join(f"{sha256}  {path}\n" for path, sha256 in lines).encode()


def decode(raw: bytes) -> list[tuple[str, str]]:
    """(path, SHA-256) of every line.

    Raises:
        BundleError: a line has another form, or two names would be one file.
    """
    text = raw.decode("ascii", "replace")
    if not text.endswith("\n") or text.count("\n") > MAX_LINES:
        raise _odd(f"is incomplete or has more than {MAX_LINES:,} lines")
    lines = []
    for number, line in enumerate(text[:-1].split("\n"), 1):
        found = _LINE.fullmatch(line)
        if found is None or not is_path(found[2]):
            raise _odd(f"has an invalid line {number}: {line[:120]!r}")
        lines.append((found[2], found[1]))
    if both := clash(path for path, _ in lines):
        raise _odd(f"lists {both[0]} and {both[1]}, which would be the same file on some file systems", "name-clash")
    return lines


def _odd(what: str, code: str = "checksums") -> BundleError:
    return BundleError(code, f"{CHECKSUMS} {what}; do not use this bundle, and ask its creator for another copy")
