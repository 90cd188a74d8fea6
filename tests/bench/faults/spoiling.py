"""Ways to spoil a model folder, as people and disks do."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from appliance.checkpoint.import_record import write_record
from tests.bench.faults.fault import Spoil
from tests.tiny import write_checkpoint

WEIGHTS = "model.safetensors"
# Sizes that both engines run on a CPU in no time.
SHAPE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 4976698672\n".format("4f" * 32)


def write_model(folder: Path) -> None:
    """A good one."""
    write_checkpoint(folder, dtype="float32", **SHAPE)


def as_imported(folder: Path, media: Path) -> None:
    """As the console imports a model's folder from a drive, which stays mounted."""
    there = media / "STICK" / folder.name
    shutil.copytree(folder, there)
    digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}
    write_record(folder, digests, source=f"STICK/{folder.name}", name=folder.name, signed_by="", author="")


def of_shape(**shape: Any) -> Spoil:
    """Another good one, in its place."""

    def spoil(folder: Path) -> None:
        write_checkpoint(folder, dtype="float32", **SHAPE | shape)

    return spoil


def config(**changes: Any) -> Spoil:
    """config.json with these values."""

    def spoil(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return spoil


def remove(*names: str) -> Spoil:
    def spoil(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return spoil


def text(name: str, content: str) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / name).write_text(content)

    return spoil


def texts(files: Mapping[str, str]) -> Spoil:
    """Files of the site's own, beside the model's."""

    def spoil(folder: Path) -> None:
        for name, content in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(content)

    return spoil


def replaced(name: str, old: str, new: str) -> Spoil:
    """A word of a file, wherever it stands."""

    def spoil(folder: Path) -> None:
        path = folder / name
        text = path.read_text()
        assert old in text, f"{name} does not hold {old}"
        path.write_text(text.replace(old, new))

    return spoil


def recoded(name: str, encoding: str) -> Spoil:
    """As an editor saves it."""

    def spoil(folder: Path) -> None:
        path = folder / name
        path.write_bytes(path.read_text().encode(encoding))

    return spoil


def link_to_itself(name: str) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(name)

    return spoil


def folder_instead(name: str) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return spoil


def cut(name: str, share: float = 0.6) -> Spoil:
    """Keep the file's beginning, as a copy that was broken off does."""

    def spoil(folder: Path) -> None:
        path = folder / name
        with path.open("r+b") as file:
            file.truncate(int(path.stat().st_size * share))

    return spoil


def chat_template(template: str) -> Spoil:
    def spoil(folder: Path) -> None:
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))

    return spoil


def garble(folder: Path) -> None:
    """The header's first kilobyte, as a bad disk returns it."""
    with (folder / WEIGHTS).open("r+b") as file:
        file.seek(8)
        file.write(b"\xff" * 1024)


def not_numbers(folder: Path) -> None:
    """The header is whole, and every weight is NaN."""
    path = folder / WEIGHTS
    with path.open("r+b") as file:
        begin = 8 + int.from_bytes(file.read(8), "little")
        file.seek(begin)
        file.write(b"\xff" * (path.stat().st_size - begin))


def lose_a_shard(folder: Path) -> None:
    """Two shards and their index, of which the second was not copied."""
    tensors = load_file(folder / WEIGHTS)
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, held in shards.items():
        save_file({name: tensors[name] for name in held}, folder / file, {"format": "pt"})
    weight_map = {name: file for file, held in shards.items() for name in held}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / WEIGHTS).unlink()
    (folder / "model-00002-of-00002.safetensors").unlink()


def widen(folder: Path) -> None:
    """One weight of another model's shape."""
    tensors = load_file(folder / WEIGHTS)
    name = "model.layers.0.mlp.gate_proj.weight"
    tensors[name] = np.concatenate([tensors[name], tensors[name]])
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
