"""The names of the formats that the front door reads (`serving/parsers/registry.py`) and of the encoders that it writes
prompts with (`checkpoint/encoders`), as a profile may choose them."""

from __future__ import annotations

from typing import Final

AUTO: Final = "auto"
NONE: Final = "none"

TOOL_CALLS: Final = (
    "hermes", "qwen3-coder", "llama3-json", "pythonic", "mistral", "deepseek-v3", "deepseek-v3.1", "dsml", "minimax-m2",
    "glm-4.5", "gpt-oss", "gemma", "kimi-k2", "nemotron", "granite", "phi-4-mini",
)  # fmt: skip
REASONING: Final = (
    "think", "dsml", "kimi-k2", "kimi", "minimax-m2", "mistral", "granite", "gemma4", "gpt-oss",
)  # fmt: skip
CHAT_ENCODINGS: Final = ("deepseek-v3.2", "deepseek-v4-april", "deepseek-v4-0731")
