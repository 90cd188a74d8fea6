"""Builds the model that a config describes: its family's description says by which forward pass."""

from __future__ import annotations

from appliance.checkpoint.families import FILES, family_of
from appliance.models.base import BuildContext, Model
from kernels.named import load


def build(context: BuildContext) -> Model:
    """Allocate the model that `context.config` describes.

    Raises:
        ValueError: the engine does not have its family. Preflight says so before the engine is started.
    """
    architecture = context.config.architecture
    family = family_of(architecture)
    if family is None:
        raise ValueError(f"{architecture} is not supported (supported: {', '.join(FILES)})")
    model: Model = load(family.forward)(context)
    return model
