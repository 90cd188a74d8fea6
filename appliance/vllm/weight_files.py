"""Which files vLLM reads a model's weights from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.safetensors import read_index
from appliance.vllm.plan import VllmPlan

# Values of --load-format with which it takes what the safetensors index names.
_BY_INDEX: Final = ("auto", "hf", "safetensors")


def weight_files(plan: VllmPlan) -> Sequence[Path]:
    """Those that the index names, and not others beside them, as Mistral's consolidated.safetensors; none where the
    profile has vLLM read something else, or where the files cannot be told. Reads their headers."""
    if plan.profile.vllm.extra_args.get("load-format", "auto") not in _BY_INDEX:
        return ()
    try:
        return read_index(plan.folder).files
    except (CheckpointError, OSError):  # vLLM will say what is wrong, or knows better
        return ()
