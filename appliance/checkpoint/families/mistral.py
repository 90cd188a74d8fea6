"""Mistral: Llama's decoder, with a sliding window in every layer where the config has one."""

from __future__ import annotations

from appliance.checkpoint.families.decoder import Decoder
from appliance.checkpoint.families.windows import in_every_layer

FAMILY = Decoder(model_type="mistral", windows=in_every_layer())
