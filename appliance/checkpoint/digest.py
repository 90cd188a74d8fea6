"""What identifies a checkpoint, in milliseconds: not its weights' bytes, but everything around them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from appliance.checkpoint.encoders import encoder_files
from appliance.checkpoint.json_file import read_raw
from appliance.checkpoint.safetensors import INDEX_FILE, read_index

# Everything of a model folder that changes what a prompt gives, besides the weights.
FILES = (
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    INDEX_FILE,
    "tokenizer.json",
    "tokenizer_config.json",
)


def checkpoint_digest(folder: Path) -> str:
    """`sha256:...` over the config, tokenizer and template files, an encoder's, and the headers and sizes of the weight
    files.

    The weights' bytes are not read: two checkpoints of the same shapes and files that differ in numbers alone have
    the same digest. It tells models and versions apart; it proves nothing about an attacker. Raises CheckpointError
    when the weight files are incomplete.
    """
    digest = hashlib.sha256()

    def add(name: str, data: bytes) -> None:
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)

    for name in FILES:
        path = folder / name
        if path.is_file():
            add(name, read_raw(path, "model-file"))
    for path in encoder_files(folder):
        add(f"encoding/{path.name}", read_raw(path, "model-file"))
    for path in read_index(folder).files:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            add(path.name, file.read(length))
        digest.update(f"{path.stat().st_size}\0".encode())
    return f"sha256:{digest.hexdigest()}"
