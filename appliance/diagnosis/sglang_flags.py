"""A fix for SGLang, which no profile starts: its own flags instead of a patch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from appliance.protocol import Fix

# A profile's keys under the names that SGLang has for them.
FLAGS = {
    "block-size": "--page-size",
    "dtype": "--dtype",
    "gpu-memory-utilization": "--mem-fraction-static",
    "kv-cache-dtype": "--kv-cache-dtype",
    "max-model-len": "--context-length",
    "max-num-batched-tokens": "--chunked-prefill-size",
    "max-num-seqs": "--max-running-requests",
    "tensor-parallel-size": "--tp-size",
    "vllm.extra-args.load-format": "--load-format",
    "vllm.extra-args.quantization": "--quantization",
    "vllm.extra-args.reasoning-parser": "--reasoning-parser",
    "vllm.extra-args.tool-call-parser": "--tool-call-parser",
}


def in_flags(fix: Fix) -> Fix:
    """The fix with its patch as flags; unchanged where it has none."""
    if not fix.patch:
        return fix
    changes = " ".join(filter(None, (_change(key, value) for key, value in fix.patch.items())))
    return msgspec.structs.replace(fix, text=f"{fix.text} {changes}".rstrip(), patch=None)


def _change(key: str, value: Any) -> str:
    flag = FLAGS.get(key)
    if flag is None or isinstance(value, Mapping):
        return ""
    return f"Remove {flag}." if value is None else f"Set {flag} to {value}."
