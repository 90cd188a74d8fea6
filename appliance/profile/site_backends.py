"""What a profile may say under `site-backends`, as far as that can be judged without the model: a site by the name
that `ingot explain` prints, and a backend of its op. Which places there are is the model's matter, and preflight's."""

from __future__ import annotations

import difflib
import re
from typing import Final

from kernels.catalogue import OPS
from kernels.selection import AUTO

KEY: Final = "site-backends"
PATTERN: Final = r"(?P<op>[a-z0-9_]+)@[0-9]+(?:x[0-9]+)*(?::[a-z0-9_]+)?"
BACKENDS: Final = {op.name: (AUTO, *(backend.name for backend in op.of("native"))) for op in OPS if op.of("native")}


def objection(name: object, backend: object) -> tuple[str, str] | None:
    """What is wrong with an entry, and what to do; None if nothing is."""
    match = re.fullmatch(PATTERN, name) if isinstance(name, str) else None
    if match is None:
        return "Not the name of a site.", "Write it as `ingot explain` prints it, such as linear@4096x14336."
    op = match["op"]
    if op not in BACKENDS:
        return f"There is no operation {op}.", _nearest(op, list(BACKENDS))
    if backend not in BACKENDS[op]:
        return f"Not a backend of {op}.", _nearest(backend, list(BACKENDS[op]))
    return None


def _nearest(given: object, known: list[str]) -> str:
    nearest = difflib.get_close_matches(str(given)[:64], known, n=1)
    return f"Did you mean {nearest[0]}?" if nearest else f"Known: {', '.join(known)}."
