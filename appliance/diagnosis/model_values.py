"""Where a value that a message quotes stands in the model's own files: config.json and those beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.json_file import read_object
from appliance.checkpoint.safetensors import read_index
from appliance.diagnosis.quoting import NAME, QUOTED, is_after_noun, is_distinct

FILES = (
    "config.json", "generation_config.json", "tokenizer_config.json", "quantize_config.json", "hf_quant_config.json",
    "preprocessor_config.json", "processor_config.json", "adapter_config.json",
)  # fmt: skip
LARGE_FILES = ("tokenizer.json", "model.safetensors.index.json", "chat_template.json")
MAX_BYTES = 4 << 20
MAX_VALUES = 5000
MAX_DEPTH = 5
# Lists of tokens: long, and their values are a client's words as well.
SKIPPED = ("added_tokens_decoder", "additional_special_tokens", "chat_template")
# The values of these are names that stand in a message without quotes, too.
NAMING = (
    "type", "rope_type", "quant_method", "quant_algo", "kv_cache_quant_algo", "model_type", "architectures",
    "tokenizer_class", "hidden_act", "torch_dtype", "dtype", "format",
)  # fmt: skip
WORD = re.compile(r"[\w.+-]{1,100}")


class ModelValue(NamedTuple):
    """`key` is dotted where objects stand within each other."""

    file: str
    key: str
    value: str

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]


def damaged_file_in(folder: Path) -> CheckpointError | None:
    """What is wrong with the first of a model's JSON files that holds no JSON object; None where all do."""
    for file in (*FILES, *LARGE_FILES):
        path = folder / file
        if not (path.exists() or path.is_symlink()):
            continue
        try:
            read_object(path, "model-file")
        except CheckpointError as error:
            return error
    return None


def damaged_weights_in(folder: Path) -> CheckpointError | None:
    """What is wrong with a model's safetensors, by their index and headers; None where those are whole, or its weights
    are in another format."""
    if not any(folder.glob("*.safetensors*")):
        return None
    try:
        read_index(folder)
    except CheckpointError as error:
        return error
    return None


def model_value_in(said: str, folder: Path) -> ModelValue | None:
    """The value that a message speaks of: one whose key and value it says counts before one that it quotes, and that
    before a name that it says. Files that are missing or damaged are passed over."""
    values = list(islice(_values(folder), MAX_VALUES))
    words = {_as_json(word.strip(".")) for word in WORD.findall(said)}
    named = set(NAME.findall(said))
    quoted = {value.strip() for pattern in QUOTED for value in pattern.findall(said)}
    for value in values:
        if value.name in named and value.value in words | quoted:
            return value
    distinct = [value for value in values if _is_distinct(value.value)]
    by_quote = (value for value in distinct if value.value in quoted)
    by_name = (value for value in distinct if value.value in words and _is_named(value, said))
    return next(by_quote, None) or next(by_name, None)


def _as_json(word: str) -> str:
    return word.lower() if word in ("True", "False") else word


def _is_named(value: ModelValue, said: str) -> bool:
    """Whether a word that is said without quotes must be this value: a class's name, or right after what it is the
    value of. Others, such as `linear`, are ordinary words."""
    if value.name not in NAMING:
        return False
    if _is_class_name(value.value):
        return True
    return is_after_noun(value.name, value.value, said)


def _is_class_name(value: str) -> bool:
    """Several words in one, as `LlamaForCausalLM` and `Qwen2Tokenizer` are."""
    humps = any((before.islower() or before.isdigit()) and after.isupper() for before, after in pairwise(value))
    return value.isidentifier() and value[0].isupper() and any(map(str.islower, value)) and humps


def _is_distinct(value: str) -> bool:
    return is_distinct(value) and not value.isdecimal()


def _values(folder: Path) -> Iterator[ModelValue]:
    for file in FILES:
        try:
            found = read_object(folder / file, "model-file", MAX_BYTES)
        except CheckpointError:
            continue
        for key, value in _scalars(found):
            yield ModelValue(file, key, value)


def _scalars(found: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    for name, value in found.items():
        if name in SKIPPED or value is None:
            continue
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            if depth < MAX_DEPTH:
                yield from _scalars(value, f"{key}.", depth + 1)
            continue
        for one in value if isinstance(value, list) else (value,):
            if isinstance(one, (str, int, float)):
                yield key, _as_json(str(one))
