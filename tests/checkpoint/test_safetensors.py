"""safetensors headers: whole files are indexed, damaged ones named with file, offset and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from appliance.checkpoint import CheckpointError
from appliance.checkpoint.digest import checkpoint_digest
from appliance.checkpoint.safetensors import INDEX_FILE, SINGLE_FILE, read_header, read_index
from tests.tiny import write_checkpoint


def write_raw(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw + data)
    return path


def shard(folder: Path) -> Path:
    """The checkpoint of `folder` split over two files and an index, as large models come."""
    tensors = load_file(folder / SINGLE_FILE)
    (folder / SINGLE_FILE).unlink()
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / INDEX_FILE).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return folder


def test_the_bytes_lie_where_the_index_says(tmp_path: Path) -> None:
    """Offsets are absolute: cutting them out of the file gives each tensor."""
    folder = write_checkpoint(tmp_path / "m")
    index = read_index(folder)
    raw = (folder / SINGLE_FILE).read_bytes()
    expected = load_file(folder / SINGLE_FILE)
    assert index.tensors.keys() == expected.keys()
    for name, entry in index.tensors.items():
        found = np.frombuffer(raw[entry.begin : entry.end], np.float32).reshape(entry.shape)
        assert np.array_equal(found, expected[name])
    assert index.total_bytes == sum(tensor.nbytes for tensor in expected.values())
    assert index.files == (folder / SINGLE_FILE,)


def test_shards_are_one_index(tmp_path: Path) -> None:
    """Split over files, the same tensors."""
    whole = read_index(write_checkpoint(tmp_path / "m"))
    split = read_index(shard(tmp_path / "m"))
    assert {n: (e.dtype, e.shape) for n, e in split.tensors.items()} == {
        n: (e.dtype, e.shape) for n, e in whole.tensors.items()
    }
    assert split.total_bytes == whole.total_bytes
    assert len(split.files) == 2


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "data", "said"),
    [
        (b"{", b"", "not JSON"),
        (b"[]", b"", "not an object"),
        (b'{"a": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", b"", "not JSON"),
        ({"a": 5}, b"", "object"),
        ({"a": {**F32, "dtype": "F99"}}, b"\0" * 8, "unknown dtype"),
        ({"a": {**F32, "dtype": 3}}, b"\0" * 8, "unknown dtype"),
        ({"a": {**F32, "shape": [-2]}}, b"\0" * 8, "shape"),
        ({"a": {**F32, "shape": [2.0]}}, b"\0" * 8, "shape"),
        ({"a": {**F32, "shape": "2"}}, b"\0" * 8, "shape"),
        ({"a": {**F32, "shape": [True, 2]}}, b"\0" * 8, "shape"),
        ({"a": {**F32, "shape": [1] * 1000}}, b"\0" * 8, "shape"),
        ({"a": {**F32, "shape": [3]}}, b"\0" * 8, "8 bytes"),
        ({"a": {**F32, "shape": [1 << 62, 1 << 62]}}, b"\0" * 8, "8 bytes"),
        ({"a": {**F32, "data_offsets": [8, 0]}}, b"\0" * 8, "data_offsets"),
        ({"a": {**F32, "data_offsets": [0]}}, b"\0" * 8, "data_offsets"),
        ({"a": {**F32, "data_offsets": None}}, b"\0" * 8, "data_offsets"),
        ({"a": F32}, b"\0" * 4, "truncated: it has"),
        ({"a": F32}, b"\0" * 12, "4 bytes that its header does not describe"),
        ({"a": F32, "b": {**F32, "data_offsets": [4, 12]}}, b"\0" * 12, "overlaps"),
        ({"a": F32, "b": {**F32, "data_offsets": [12, 20]}}, b"\0" * 20, "gap"),
    ],
)
def test_a_damaged_header_is_named(tmp_path: Path, header: Any, data: bytes, said: str) -> None:
    """Every way in which a header can lie."""
    path = write_raw(tmp_path / SINGLE_FILE, header, data)
    with pytest.raises(CheckpointError, match=said) as caught:
        read_header(path)
    assert caught.value.id == "safetensors-invalid"
    assert caught.value.file == path
    assert any(line.startswith("offset ") for line in caught.value.evidence)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "0 bytes"),
        (b"\x10", "1 bytes"),
        ((1 << 40).to_bytes(8, "little") + b"{}", "claims a header"),
        ((500).to_bytes(8, "little") + b"{}", "truncated"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"PK\x03\x04" + b"\0" * 100, "claims a header|truncated"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, content: bytes, said: str) -> None:
    """Empty, cut off in the header, a pointer, another format."""
    path = tmp_path / SINGLE_FILE
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=said):
        read_header(path)


def test_a_tensor_without_elements_takes_no_bytes(tmp_path: Path) -> None:
    """Legal, and of no consequence."""
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [0, 3], "data_offsets": [0, 0]},
        "b": F32,
    }
    entries = read_header(write_raw(tmp_path / SINGLE_FILE, header, b"\0" * 8))
    assert entries["a"].shape == (0, 3)


def _drop_shard(folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors").unlink()


def _cut_shard(folder: Path) -> None:
    path = folder / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def _reindex(change: Any) -> Any:
    def damage(folder: Path) -> None:
        index = json.loads((folder / INDEX_FILE).read_text())
        change(index)
        (folder / INDEX_FILE).write_text(json.dumps(index))

    return damage


@pytest.mark.parametrize(
    ("damage", "id", "said"),
    [
        (_drop_shard, "shard-missing", "model-00002-of-00002"),
        (_cut_shard, "safetensors-invalid", "model-00002-of-00002.safetensors is truncated"),
        (
            _reindex(lambda i: i["weight_map"].update(ghost="model-00001-of-00002.safetensors")),
            "tensor-missing",
            "ghost",
        ),
        (_reindex(lambda i: i["weight_map"].update(x="../../etc/passwd.safetensors")), "index-invalid", "etc/passwd"),
        (_reindex(lambda i: i["weight_map"].update(x="a\x00b.safetensors")), "shard-missing", "missing"),
        (_reindex(lambda i: i["weight_map"].update(x="a" * 5000 + ".safetensors")), "shard-missing", "missing"),
        (_reindex(lambda i: i["weight_map"].update(x=5)), "index-invalid", "names 5"),
        (_reindex(lambda i: i.pop("weight_map")), "index-invalid", "no weight_map"),
        (_reindex(lambda i: i.update(weight_map=[])), "index-invalid", "no weight_map"),
        (lambda f: (f / INDEX_FILE).write_text("{"), "index-unreadable", "not JSON"),
        (lambda f: (f / INDEX_FILE).unlink(), "weights-missing", "neither"),
    ],
)
def test_damaged_shards_are_named(tmp_path: Path, damage: Any, id: str, said: str) -> None:
    """Which file or tensor, and what to copy."""
    folder = shard(write_checkpoint(tmp_path / "m"))
    damage(folder)
    with pytest.raises(CheckpointError, match=said) as caught:
        read_index(folder)
    assert caught.value.id == id
    assert caught.value.fix.text


def test_weights_that_can_run_code_are_not_read(tmp_path: Path) -> None:
    """A folder with only pytorch_model.bin is refused with a request for safetensors."""
    folder = write_checkpoint(tmp_path / "m")
    (folder / SINGLE_FILE).rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="Only safetensors"):
        read_index(folder)


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_any_corruption_is_a_checkpoint_error(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Random bytes changed in the length or the header, or the file cut anywhere: indexed consistently, or refused."""
    folder = tmp_path_factory.getbasetemp() / "corrupt"
    if not folder.exists():
        write_checkpoint(folder)
        (folder / SINGLE_FILE).rename(folder / "original")
    raw = bytearray((folder / "original").read_bytes())
    end = 8 + int.from_bytes(raw[:8], "little")
    for _ in range(data.draw(st.integers(0, 4))):
        raw[data.draw(st.integers(0, end - 1))] = data.draw(
            st.integers(0, 255) | st.sampled_from(b'0123456789[]{},":-')
        )
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(0, len(raw)))]
    (folder / SINGLE_FILE).write_bytes(raw)
    try:
        index = read_index(folder)
    except CheckpointError as error:
        assert error.file is not None  # noqa: PT017
        return
    assert all(0 <= entry.begin <= entry.end <= len(raw) for entry in index.tensors.values())


def test_the_digest_tells_models_apart(tmp_path: Path) -> None:
    """It changes with config, tokenizer and shapes; copying a folder keeps it; a name of the folder does not matter."""
    first = checkpoint_digest(write_checkpoint(tmp_path / "a"))
    assert first.startswith("sha256:")
    assert len(first) == 7 + 64
    assert checkpoint_digest(write_checkpoint(tmp_path / "b")) == first
    assert checkpoint_digest(write_checkpoint(tmp_path / "c", rope_theta=5e5)) != first
    assert checkpoint_digest(write_checkpoint(tmp_path / "d", num_hidden_layers=1)) != first
    (tmp_path / "b" / "encoding").mkdir()
    (tmp_path / "b" / "encoding" / "encoding_dsv4.py").write_text("REASONING_EFFORT_MAX = ''")
    assert checkpoint_digest(tmp_path / "b") != first
    assert checkpoint_digest(shard(tmp_path / "a")) != first
