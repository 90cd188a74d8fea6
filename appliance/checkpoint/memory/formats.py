"""The number formats of weights and caches, and how many bytes a number of each takes."""

from __future__ import annotations

from typing import Final

MIB: Final = 1 << 20
ITEM_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
# What the profile's `kv-cache-dtype` is to the engine, by torch's name.
CACHE_DTYPES: Final = {
    "float32": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}
