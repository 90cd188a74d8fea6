"""Oracle files: what an engine that is trusted answered, position by position, to be compared with another's answers.

The format is described in docs/accept.md. A file is JSON, or the same with gzip, whatever its name.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import math
from pathlib import Path
from typing import Final

import msgspec

from appliance.given_file import read_given

FORMAT: Final = "ingot-oracle"
VERSION: Final = 1
MOST_FILE_BYTES: Final = 1 << 28
MOST_BYTES: Final = 1 << 30  # unpacked
GZIP: Final = b"\x1f\x8b"

Top = list[tuple[int, float]]
"""The likeliest tokens at a position with their logprobs, best first."""


class OracleError(ValueError):
    """The file is no oracle. The text names the field, its value, and what to do."""


class Recorder(msgspec.Struct, frozen=True, kw_only=True):
    """Who computed the values. `program` wrote the file; `engine` ran the model."""

    program: str
    engine: str
    engine_version: str = ""
    device: str = ""


class RecordedModel(msgspec.Struct, frozen=True, kw_only=True):
    """`digest` is that of `/v1/models` ("" where it was not known); `tokenizer_text` became `tokenizer_ids`, without
    special tokens; `revision` is the profile's."""

    name: str
    dtype: str
    tokenizer_text: str
    tokenizer_ids: list[int]
    digest: str = ""
    revision: str = ""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt with its greedy continuation, `tokens`. `logprobs` and `top` have a place for each token of both, in
    order; the first prompt token has None, and no likeliest tokens."""

    id: str
    prompt: list[int]
    tokens: list[int]
    logprobs: list[float | None]
    top: list[Top]


class RecordedNeedle(msgspec.Struct, frozen=True, kw_only=True):
    """`depth` is the share of the filler before the fact; `expected` is the fact, `answer` what was answered."""

    id: str
    depth: float
    prompt: list[int]
    expected: str
    answer: str
    found: bool


class Oracle(msgspec.Struct, frozen=True, kw_only=True):
    """`top` is how many likeliest tokens were recorded."""

    format: str = FORMAT
    version: int = VERSION
    recorded: str
    recorder: Recorder
    model: RecordedModel
    top: int
    entries: list[Entry]
    needles: list[RecordedNeedle] = []


class OracleFile(msgspec.Struct, frozen=True):
    path: Path
    sha256: str
    oracle: Oracle


def read_oracle(path: Path) -> OracleFile:
    """Raises OracleError; OSError if the file cannot be read."""
    raw = read_given(path, MOST_FILE_BYTES)
    if len(raw) > MOST_FILE_BYTES:
        raise OracleError(f"it is larger than {MOST_FILE_BYTES >> 20} MiB: record fewer or shorter prompts")
    text = _unpacked(raw) if raw.startswith(GZIP) else raw
    try:
        head = msgspec.json.decode(text, type=_Head)
        if head.format != FORMAT:
            raise OracleError(f"format: {head.format!r} is not {FORMAT!r}: give a file of `ingot accept record`")
        if head.version != VERSION:
            raise OracleError(
                f"version: {head.version} is not {VERSION}, the one that this Ingot reads: record it again, or use the "
                "Ingot that recorded it"
            )
        oracle = msgspec.json.decode(text, type=Oracle)
    except msgspec.ValidationError as error:
        raise OracleError(f"it is not an oracle ({error}): record it again with `ingot accept record`") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise OracleError(f"it is not JSON ({error}): record it again with `ingot accept record`") from None
    _check(oracle)
    return OracleFile(path, hashlib.sha256(raw).hexdigest(), oracle)


class _Head(msgspec.Struct):
    format: str = ""
    version: int = 0


def write_oracle(path: Path, oracle: Oracle) -> None:
    """An entry a line; packed if the name ends in .gz. Raises OSError."""
    _check(oracle)
    whole = msgspec.to_builtins(oracle)
    parts = [f"{_json(name)}:{_lines(value)}" for name, value in whole.items()]
    text = ("{" + ",\n".join(parts) + "}\n").encode()
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def _lines(value: object) -> str:
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(map(_json, value)) + "]"
    return _json(value)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _unpacked(raw: bytes) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
            text = file.read(MOST_BYTES + 1)
    except (OSError, EOFError) as error:
        raise OracleError(f"its gzip is damaged ({error}): copy it again") from None
    if len(text) > MOST_BYTES:
        raise OracleError(f"unpacked, it is larger than {MOST_BYTES >> 20} MiB: record fewer or shorter prompts")
    return text


def _check(oracle: Oracle) -> None:
    """Raises OracleError."""
    if not oracle.entries and not oracle.needles:
        raise OracleError("entries: there are none: record it again")
    seen: set[str] = set()
    for place, entry in enumerate(oracle.entries):
        where = f"entries[{place}]"
        _check_name(entry.id, seen, where)
        total = len(entry.prompt) + len(entry.tokens)
        if not entry.prompt:
            raise OracleError(f"{where}.prompt: it is empty: record it again")
        for name, values in (("logprobs", entry.logprobs), ("top", entry.top)):
            if len(values) != total:
                raise OracleError(f"{where}.{name}: {len(values)} places for {total} tokens: record it again")
        _check_ids([*entry.prompt, *entry.tokens, *(token for top in entry.top for token, _ in top)], where)
        numbers = [*entry.logprobs[1:], *(logprob for top in entry.top for _, logprob in top)]
        bad = [each for each in numbers if each is None or not math.isfinite(each) or each > 1e-3]
        if bad:
            raise OracleError(f"{where}: {bad[0]} is not the log of a probability: record it again")
    for place, needle in enumerate(oracle.needles):
        where = f"needles[{place}]"
        _check_name(needle.id, seen, where)
        _check_ids(needle.prompt, where)
        if not needle.prompt or not needle.expected or not 0 <= needle.depth <= 1:
            raise OracleError(f"{where}: it needs a prompt, the expected fact, and a depth of 0 to 1: record it again")


def _check_name(name: str, seen: set[str], where: str) -> None:
    if not name or name in seen:
        raise OracleError(f"{where}.id: {name!r} is {'there twice' if name else 'empty'}: give each its own name")
    seen.add(name)


def _check_ids(ids: list[int], where: str) -> None:
    if ids and min(ids) < 0:
        raise OracleError(f"{where}: {min(ids)} is not a token id: record it again")
