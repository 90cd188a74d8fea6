"""Which tensors a model folder holds and where their bytes lie, read from the safetensors headers alone.

The format: 8 bytes with the header's length (little-endian), the header as JSON, then the tensors' bytes without gaps.
https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeGuard

import msgspec

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.json_file import read_object

SINGLE_FILE: Final = "model.safetensors"
INDEX_FILE: Final = "model.safetensors.index.json"
MAX_HEADER_BYTES: Final = 100_000_000  # the format's own limit
MAX_DIMENSIONS: Final = 16

# Bits of one element.
DTYPE_BITS: Final = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64,
    "U64": 64,
}  # fmt: skip
COPY_AGAIN: Final = "Copy the file again and compare its size with the original."


class TensorEntry(msgspec.Struct, frozen=True):
    """One tensor: its bytes are `file[begin:end]`, offsets counted from the start of the file. `dtype` is the
    format's name: F32, BF16, F16, ..."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class TensorIndex(msgspec.Struct, frozen=True):
    """All tensors of a model folder by name, the files that hold them, and their bytes together."""

    tensors: dict[str, TensorEntry]
    files: tuple[Path, ...]
    total_bytes: int


def read_index(folder: Path) -> TensorIndex:
    """The tensors of `model.safetensors`, or of the shards that `model.safetensors.index.json` names.

    Raises CheckpointError when a file is missing, truncated, or not what it says. Reads headers only.
    """
    index_path = folder / INDEX_FILE
    single = folder / SINGLE_FILE
    if single.exists() and not index_path.exists():
        tensors = read_header(single)
        return TensorIndex(tensors, (single,), sum(entry.end - entry.begin for entry in tensors.values()))
    if not index_path.exists():
        raise _no_weights(folder)
    weight_map = _weight_map(index_path)
    headers = {name: read_header(folder / name) for name in _shards(folder, weight_map, index_path)}
    chosen: dict[str, TensorEntry] = {}
    for tensor, file in weight_map.items():
        if tensor not in headers[file]:
            raise CheckpointError(
                "tensor-missing",
                f"{INDEX_FILE} lists {tensor} in {file}, which does not contain it.",
                file=folder / file,
                field=tensor,
                value=file,
                remedy="Copy the index and all shards again from one source.",
            )
        chosen[tensor] = headers[file][tensor]
    files = tuple(folder / name for name in headers)
    return TensorIndex(chosen, files, sum(entry.end - entry.begin for entry in chosen.values()))


def _no_weights(folder: Path) -> CheckpointError:
    found = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".gguf", ".safetensors"))
    message = f"{folder.name} has neither {SINGLE_FILE} nor {INDEX_FILE}."
    remedy = "Copy the whole model folder again."
    if any(name.endswith(".safetensors") for name in found):
        remedy = f"Copy {INDEX_FILE} too; it says which shard holds which tensor."
    elif found:
        remedy = "Only safetensors are supported, since other formats can run code. Get the model as safetensors."
    return CheckpointError("weights-missing", message, file=folder, evidence=tuple(found[:8]), remedy=remedy)


def _weight_map(path: Path) -> dict[str, str]:
    weight_map = read_object(path, "index").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            "index-invalid",
            f"{path.name} has no weight_map.",
            file=path,
            field="weight_map",
            value=weight_map,
            remedy="Copy the file again.",
        )
    for tensor, name in weight_map.items():
        # A shard lies beside its index: a path here could reach any file of this machine.
        if not isinstance(name, str) or not name.endswith(".safetensors") or "/" in name or "\\" in name:
            raise CheckpointError(
                "index-invalid",
                f"{path.name} names {ascii(name)[:80]} as the file of {ascii(tensor)[:80]}.",
                file=path,
                field=f"weight_map.{tensor}",
                value=name,
                remedy="Must be a .safetensors file in the same folder. Copy the index again.",
            )
    return weight_map


def _shards(folder: Path, weight_map: dict[str, str], index_path: Path) -> list[str]:
    names = sorted(set(weight_map.values()))
    try:
        missing = [name for name in names if not (folder / name).is_file()]
    except (OSError, ValueError):  # a name too long for the file system, or with a NUL in it
        missing = names
    if missing:
        some = ", ".join(ascii(name)[1:-1][:80] for name in missing[:4]) + (", ..." if len(missing) > 4 else "")
        raise CheckpointError(
            "shard-missing",
            f"{len(missing)} of {len(names)} weight files are missing: {some}.",
            file=index_path,
            field="weight_map",
            value=missing[0],
            remedy="Copy the missing files into the model's folder.",
        )
    return names


# --------------------------------------------------------------------------------------------------------------------
# One file
# --------------------------------------------------------------------------------------------------------------------


def read_header(path: Path) -> dict[str, TensorEntry]:
    """The tensors of one file. Raises CheckpointError that names the file, the offset and what to do."""
    try:
        if not path.is_file():
            raise _bad(path, "is not a file.", "Copy the model folder again.")
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if prefix.startswith(b"version "):
                raise _bad(path, "is a Git LFS pointer; the file itself was never downloaded.", "Run `git lfs pull`.")
            if len(prefix) < 8 or length > min(MAX_HEADER_BYTES, size - 8):
                raise _bad(path, _too_short(size, length, len(prefix)), COPY_AGAIN, offset=0)
            raw = file.read(length)
    except OSError as error:
        remedy = "Make it a file this user can read."
        raise _bad(path, f"cannot be read: {error.strerror or error}.", remedy) from error
    data_start = 8 + length
    try:
        header = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _bad(path, f"has a header that is not JSON ({error}).", COPY_AGAIN, offset=8) from None
    if not isinstance(header, dict):
        raise _bad(path, "has a header that is not an object.", COPY_AGAIN, offset=8)
    header.pop("__metadata__", None)
    entries = {name: _entry(path, name, value, data_start) for name, value in header.items()}
    _check_layout(path, entries, data_start, size)
    return entries


def _too_short(size: int, length: int, read: int) -> str:
    if read < 8:
        return f"has {size:,} bytes, too few for a safetensors file."
    if length > MAX_HEADER_BYTES:
        return f"is not a safetensors file, or its start is damaged: it claims a header of {length:,} bytes."
    return f"is truncated: its header takes {length:,} bytes, but the file has {size:,}."


def _bad(
    path: Path, what: str, remedy: str, *, offset: int | None = None, tensor: str | None = None
) -> CheckpointError:
    evidence = () if offset is None else (f"offset {offset}",)
    return CheckpointError(
        "safetensors-invalid", f"{path.name} {what}", file=path, field=tensor, evidence=evidence, remedy=remedy
    )


def _entry(path: Path, name: str, value: Any, data_start: int) -> TensorEntry:
    if not isinstance(value, dict):
        raise _bad(
            path, f"describes {_brief(name)} by something other than an object.", COPY_AGAIN, offset=8, tensor=name
        )
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise _bad(path, f"gives {_brief(name)} the unknown dtype {_brief(dtype)}.", COPY_AGAIN, offset=8, tensor=name)
    if not _whole_numbers(shape) or len(shape) > MAX_DIMENSIONS:
        raise _bad(path, f"gives {_brief(name)} the shape {_brief(shape)}.", COPY_AGAIN, offset=8, tensor=name)
    if not _whole_numbers(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        what = f"gives {_brief(name)} the data_offsets {_brief(offsets)}."
        raise _bad(path, what, COPY_AGAIN, offset=8, tensor=name)
    begin, end = offsets
    expected, rest = divmod(math.prod(shape) * DTYPE_BITS[dtype], 8)
    if rest or end - begin != expected:
        what = f"has {end - begin:,} bytes for {_brief(name)}, whose shape {shape} in {dtype} takes {expected:,}."
        raise _bad(path, what, COPY_AGAIN, offset=data_start + begin, tensor=name)
    return TensorEntry(path, dtype, tuple(shape), data_start + begin, data_start + end)


def _whole_numbers(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)


def _brief(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _check_layout(path: Path, entries: dict[str, TensorEntry], data_start: int, size: int) -> None:
    """The bytes after the header belong to the tensors without gap or overlap, to the end of the file."""
    position = data_start
    for name, entry in _by_offset(entries):
        if entry.begin != position:
            what = "overlaps the tensor before it" if entry.begin < position else "leaves a gap before it"
            message = f"is damaged: {_brief(name)} {what} ({entry.begin}, expected {position})."
            raise _bad(path, message, COPY_AGAIN, offset=entry.begin, tensor=name)
        position = entry.end
    if position > size:
        message = f"is truncated: it has {size:,} bytes, but its header describes {position:,}."
        raise _bad(path, message, COPY_AGAIN, offset=size)
    if position < size:
        message = f"has {size - position:,} bytes that its header does not describe."
        raise _bad(path, message, COPY_AGAIN, offset=position)


def _by_offset(entries: dict[str, TensorEntry]) -> Iterator[tuple[str, TensorEntry]]:
    yield from sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end))
