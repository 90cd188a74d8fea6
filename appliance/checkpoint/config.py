"""`config.json` and `generation_config.json` of a model folder, as the engine needs them.

Both spellings are read: transformers 4 (`rope_theta`, `rope_scaling`, `torch_dtype`) and transformers 5
(`rope_parameters`, `dtype`). What a family implies without saying it is in its file of `families/`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from msgspec import structs

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.families import FILES, family_of
from appliance.checkpoint.fields import Fields
from appliance.checkpoint.json_file import read_object
from appliance.checkpoint.layout import check_fp8_shapes
from appliance.checkpoint.model_config import ModelConfig
from appliance.checkpoint.sentence_transformers import with_names_of

__all__ = ["DTYPES", "SUPPORTED_ARCHITECTURES", "ModelConfig", "config_path", "read_architecture", "read_config"]


SUPPORTED_ARCHITECTURES: Final[tuple[str, ...]] = tuple(FILES)
DTYPES: Final = ("float32", "bfloat16", "float16")


def read_architecture(folder: Path) -> str:
    """The first of config.json's `architectures`."""
    path = config_path(folder)
    names = read_object(path, "config").get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str) and names[0].isprintable():
        return names[0][:128]
    raise CheckpointError(
        "config-invalid",
        "config.json does not name an architecture.",
        file=path,
        field="architectures",
        value=names,
        remedy=f'`architectures` must be a list with one name, such as ["{SUPPORTED_ARCHITECTURES[0]}"]; copy the '
        "original config.json.",
    )


def config_path(folder: Path) -> Path:
    """Raises CheckpointError where the folder is of another format than Hugging Face's."""
    path = folder / "config.json"
    if not path.exists():
        gguf = next((p.name for p in sorted(folder.glob("*.gguf"))), None)
        if gguf:
            raise CheckpointError(
                "model-is-gguf",
                f"{folder.name} contains a GGUF file ({gguf}) but no config.json. Ingot's engines do not read GGUF.",
                file=folder / gguf,
                field="model.path",
                remedy="Get the model's original folder with config.json and safetensors files.",
            )
        snapshot = next((p.parent for p in sorted(folder.glob("snapshots/*/config.json"))), None)
        if snapshot:
            inner = snapshot.relative_to(folder)
            raise CheckpointError(
                "config-missing",
                f"{folder.name} is a hub cache. The model is in {inner}.",
                file=path,
                field="model.path",
                remedy=f"Add `/{inner}` to the path.",
            )
    return path


def read_config(folder: Path) -> ModelConfig:
    """The config of a supported architecture. Raises CheckpointError that names file, field, value and remedy."""
    architecture = read_architecture(folder)
    path = folder / "config.json"
    family = family_of(architecture)
    if family is None:
        raise CheckpointError(
            "architecture-unsupported",
            f"The native engine does not support {architecture}.",
            file=path,
            field="architectures",
            value=architecture,
            evidence=(f"supported: {', '.join(SUPPORTED_ARCHITECTURES)}",),
            remedy="Choose a model of a supported architecture. Many others run with `engine: vllm`.",
        )
    fields = Fields(path, read_object(path, "config"))
    config = family.read(fields, architecture)
    if config.fp8 is not None:
        check_fp8_shapes(config, config.fp8, fields)
    config = structs.replace(config, eos_token_ids=_eos_token_ids(folder, config))
    return with_names_of(folder, config)


def _eos_token_ids(folder: Path, config: ModelConfig) -> tuple[int, ...]:
    """Those of generation_config.json as well."""
    ids: tuple[int | None, ...] = config.eos_token_ids
    path = folder / "generation_config.json"
    if path.exists():
        ids += Fields(path, read_object(path, "generation-config")).token_ids("eos_token_id", config.vocab_size)
    return tuple(dict.fromkeys(token for token in ids if token is not None))
