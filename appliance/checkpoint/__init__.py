"""A model folder on disk: config, safetensors headers, tokenizer, digest, memory plan."""

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.folder import locate

__all__ = ["CheckpointError", "locate"]
