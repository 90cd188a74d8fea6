"""Starts of vLLM that cannot succeed, each for one cause: a row each, with what preflight and diagnosis are to say."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

from tests.tiny import write_checkpoint

Prepare = Callable[[Path], None]


@dataclass(frozen=True)
class Provoked:
    """`prepare` spoils a good model folder; `changes` are dotted keys of the profile, `arguments` and `environment`
    what is given to vLLM behind Ingot's back. `families` and `evidence` are what the diagnosis of vLLM's log says,
    `preflight` the finding that would have refused the start before it began, where one can."""

    name: str
    families: tuple[str, ...]  # several where several are right
    evidence: str
    preflight: str | None = None
    prepare: Prepare = lambda folder: None
    changes: dict[str, Any] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


def edit_config(**changes: Any) -> Prepare:
    """config.json with these values; None removes one."""

    def prepare(folder: Path) -> None:
        path = folder / "config.json"
        config = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))

    return prepare


def remove(*patterns: str) -> Prepare:
    def prepare(folder: Path) -> None:
        for pattern in patterns:
            for path in folder.glob(pattern):
                path.unlink()

    return prepare


def cut(file: str, keep: float) -> Prepare:
    def prepare(folder: Path) -> None:
        raw = (folder / file).read_bytes()
        (folder / file).write_bytes(raw[: int(len(raw) * keep)])

    return prepare


def split_and_lose_a_shard(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    halves = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, held in halves.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    weight_map = {name: file for file, held in halves.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "model.safetensors").unlink()
    (folder / "model-00002-of-00002.safetensors").unlink()


def make_model(folder: Path, case: Provoked) -> Path:
    write_checkpoint(folder, dtype="float32")
    case.prepare(folder)
    return folder


PROVOKED = (
    Provoked(
        "context longer than the model's",
        ("model-config",),
        "max_model_len",
        preflight="context-too-long",
        changes={"max-model-len": 4096},
    ),
    Provoked(
        "more cache than there is memory",
        ("memory",),
        "requested memory for kv",
        preflight="memory-too-small",
        changes={"kv-cache-memory-bytes": "900 TiB"},
    ),
    Provoked(
        "one request needs more cache than there is",
        ("memory",),
        "KV cache",
        preflight="memory-too-small",
        prepare=edit_config(max_position_embeddings=4_194_304),
        changes={"max-model-len": 4_194_304, "kv-cache-memory-bytes": "1 GiB"},
    ),
    Provoked(
        "no tokenizer",
        ("model-config",),
        "okenizer",
        preflight="tokenizer-missing",
        prepare=remove("tokenizer*.json", "special_tokens_map.json"),
    ),
    Provoked(
        "an architecture that vLLM has not",
        ("model-config",),
        "NoSuchModelForCausalLM",
        preflight="architecture-unknown-to-vllm",
        prepare=edit_config(architectures=["NoSuchModelForCausalLM"], model_type="llama"),
    ),
    Provoked(
        "a number format that does not exist",
        ("quant-dtype",),
        "float12",
        prepare=edit_config(torch_dtype="float12"),
    ),
    Provoked(
        "a format of the cache that this device has not",
        ("quant-dtype",),
        "KV cache requires",
        changes={"kv-cache-dtype": "fp8"},
    ),
    Provoked(
        "a port that is taken",
        ("port",),
        "ddress already in use",
        arguments=("--host=127.0.0.1", "--port={port}"),
    ),
    Provoked(
        "a shard that was cut off",
        ("weights",),
        "afetensor",
        preflight="safetensors-invalid",
        prepare=cut("model.safetensors", 0.6),
    ),
    Provoked(
        "a shard that is not there",
        ("weights",),
        "model-00002-of-00002",
        preflight="shard-missing",
        prepare=split_and_lose_a_shard,
    ),
    Provoked(
        "tensors smaller than the config says",
        ("weights",),
        "size",
        preflight="tensor-shape",
        prepare=edit_config(intermediate_size=256),
    ),
    Provoked(
        "an argument that vLLM does not know",
        ("config",),
        "no-such-argument",
        arguments=("--no-such-argument=1",),
    ),
    Provoked(
        "a config that is not JSON",
        ("model-config",),
        "config",
        preflight="config-unreadable",
        prepare=cut("config.json", 0.5),
    ),
    Provoked(
        "a quantisation that nobody knows",
        ("quant-dtype",),
        "no_such_method",
        preflight="quantization-unknown",
        prepare=edit_config(quantization_config={"quant_method": "no_such_method"}),
    ),
    Provoked(
        "a parser of tool calls that vLLM has not",
        ("config",),
        "no_such_parser",
        changes={"vllm.extra-args.enable-auto-tool-choice": True, "vllm.extra-args.tool-call-parser": "no_such_parser"},
    ),
    Provoked(
        "a folder without weights",
        ("weights",),
        "model weights",
        preflight="weights-missing",
        prepare=remove("*.safetensors"),
    ),
)
