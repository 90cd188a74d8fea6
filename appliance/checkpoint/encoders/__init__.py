"""The encoders, and which one a model folder asks for.

Models without a chat template come with an encoder as Python, in `encoding/`. It is never run: what it says tells the
revisions apart, and each has its own file here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from appliance.checkpoint.encoders.base import Encoder
from appliance.checkpoint.encoders.deepseek_v4 import DeepSeekV4April, DeepSeekV4July
from appliance.checkpoint.encoders.deepseek_v32 import DeepSeekV32
from appliance.checkpoint.json_file import read_object, read_raw

MAX_SOURCE: Final = 1024 * 1024
MAX_FILES: Final = 32

ENCODERS: Final[Mapping[str, type[Encoder]]] = {
    encoder.name: encoder for encoder in (DeepSeekV32, DeepSeekV4April, DeepSeekV4July)
}


class Revision(NamedTuple):
    """`marks`: texts that its published encoder has, and the revisions behind it in the list have not."""

    encoder: type[Encoder]
    marks: tuple[str, ...]


# By config.json's model_type, the newest first: it is taken where the folder does not say.
REVISIONS: Final[Mapping[str, tuple[Revision, ...]]] = {
    "deepseek_v32": (Revision(DeepSeekV32, ()),),
    "deepseek_v4": (
        Revision(DeepSeekV4July, ("REASONING_EFFORT_PROMPTS", "Reasoning Effort: Beyond maximum")),
        Revision(DeepSeekV4April, ("REASONING_EFFORT_MAX", "Reasoning Effort: Absolute maximum")),
    ),
}


class Choice(NamedTuple):
    name: str
    source: str
    """What says so."""
    assumed: bool
    """Whether nothing in the folder tells the revision."""
    revisions: tuple[str, ...]
    """All that the family has, the newest first."""


def choose(folder: Path) -> Choice | None:
    """None for a family that has no encoder, and without a config. Raises CheckpointError for files that cannot be
    read."""
    config = folder / "config.json"
    model_type = read_object(config, "config").get("model_type") if config.is_file() else None
    revisions = REVISIONS.get(model_type, ()) if isinstance(model_type, str) else ()
    if not revisions:
        return None
    names = tuple(revision.encoder.name for revision in revisions)
    if len(names) == 1:
        return Choice(names[0], "config.json", False, names)
    texts = {path: read_raw(path, "encoding", MAX_SOURCE).decode(errors="replace") for path in encoder_files(folder)}
    for revision in revisions:
        for path, text in texts.items():
            if _has(text, revision.marks):
                return Choice(revision.encoder.name, f"encoding/{path.name}", False, names)
    return Choice(names[0], "config.json", True, names)


def known_message_fields() -> dict[str, frozenset[str]]:
    """By role, what messages may have beside OpenAI's fields for one encoder or another."""
    known: dict[str, frozenset[str]] = {}
    for encoder in ENCODERS.values():
        for role, fields in encoder.message_fields.items():
            known[role] = known.get(role, frozenset()) | fields
    return known


def encoder_files(folder: Path) -> list[Path]:
    """The published encoder's, in an order that does not depend on the file system."""
    return sorted(path for path in (folder / "encoding").glob("*.py") if path.is_file())[:MAX_FILES]


def _has(text: str, marks: Iterable[str]) -> bool:
    return any(mark in text for mark in marks)
