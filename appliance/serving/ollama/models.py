"""The served model as Ollama describes models."""

from __future__ import annotations

from typing import Any, Final

from appliance.serving.errors import ApiError
from appliance.serving.ollama.answer import timestamp
from appliance.serving.on_request.startable_profiles import LATEST
from appliance.serving.served_model import ServedModel

NEVER: Final = "9999-12-31T23:59:59Z"
# The version of Ollama whose API this is: editors ask for a minimum.
API_VERSION: Final = "0.12.10"
PRECISIONS: Final = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
UNITS: Final = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))


def check_name(asked: str | None, served: str) -> None:
    """Without a tag, a name stands for that with `:latest`. Raises ApiError."""
    if asked is not None and asked.removesuffix(LATEST) != served.removesuffix(LATEST):
        message = f"model {asked[:100]!r} not found. Available model: {served!r}."
        raise ApiError(404, message, param="model", code="model_not_found")


def listed(model: ServedModel) -> dict[str, Any]:
    """An entry of /api/tags."""
    return {**_named(model), "modified_at": timestamp(model.created)}


def bare(name: str, created: int) -> dict[str, Any]:
    """The same of a model of which no more is known."""
    details = {"parent_model": "", "format": "", "family": "", "families": []}
    unknown = {"size": 0, "digest": "", "details": {**details, "parameter_size": "", "quantization_level": ""}}
    return {"name": tagged(name), "model": tagged(name), **unknown, "modified_at": timestamp(created)}


def running(model: ServedModel) -> dict[str, Any]:
    """An entry of /api/ps."""
    on_gpu = model.weight_bytes if model.device != "cpu" else 0
    return {**_named(model), "expires_at": NEVER, "size_vram": on_gpu, "context_length": model.max_model_len}


def shown_model(model: ServedModel) -> dict[str, Any]:
    """The answer of /api/show."""
    family = model.family
    return {
        "modelfile": f"FROM {tagged(model.name)}",
        "parameters": "\n".join(f"{name} {value}" for name, value in model.sampling_defaults.items()),
        "template": model.template.text if model.has_template else "",
        "details": _details(model),
        "model_info": {
            "general.architecture": family,
            "general.basename": model.name,
            "general.parameter_count": model.num_parameters,
            f"{family}.context_length": model.max_model_len,
            f"{family}.embedding_length": model.hidden_size,
        },
        "capabilities": _capabilities(model),
        "modified_at": timestamp(model.created),
    }


def _named(model: ServedModel) -> dict[str, Any]:
    return {
        "name": tagged(model.name),
        "model": tagged(model.name),
        "size": model.weight_bytes,
        "digest": model.digest.removeprefix("sha256:"),
        "details": _details(model),
    }


def tagged(name: str) -> str:
    return name if ":" in name else name + LATEST


def _details(model: ServedModel) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": model.family,
        "families": [model.family],
        "parameter_size": _short(model.num_parameters),
        "quantization_level": PRECISIONS.get(model.dtype, model.dtype.upper()),
    }


def _capabilities(model: ServedModel) -> list[str]:
    calls = model.formats.tools is not None and model.has_template and "tools" in model.template.variables
    found = {"completion": True, "tools": calls, "thinking": model.formats.reasoning is not None}
    return [name for name, has in found.items() if has]


def _short(number: int) -> str:
    """As people write it: 8.2B."""
    for unit, letter in UNITS:
        if number >= unit:
            return f"{number / unit:.3g}{letter}"
    return str(number)
