"""Which format a model writes: by what its chat template has in it, or else by its family, config.json's model_type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from appliance.serving.parsers import reasoning
from appliance.serving.parsers.base import ReasoningFormat, ToolFormat
from appliance.serving.parsers.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from appliance.serving.parsers.dsml import DSML
from appliance.serving.parsers.gemma import GEMMA
from appliance.serving.parsers.glm import GLM
from appliance.serving.parsers.granite import GRANITE
from appliance.serving.parsers.harmony import HARMONY
from appliance.serving.parsers.hermes import HERMES
from appliance.serving.parsers.kimi_k2 import KIMI_K2
from appliance.serving.parsers.llama3_json import LLAMA3_JSON
from appliance.serving.parsers.minimax_m2 import MINIMAX_M2
from appliance.serving.parsers.mistral import MISTRAL
from appliance.serving.parsers.nemotron import NEMOTRON
from appliance.serving.parsers.phi4_mini import PHI4_MINI
from appliance.serving.parsers.pythonic import PYTHONIC
from appliance.serving.parsers.qwen3_coder import QWEN3_CODER

T = TypeVar("T")

FORMATS: Final[Mapping[str, ToolFormat]] = {
    tool_format.name: tool_format
    for tool_format in (
        HERMES, QWEN3_CODER, LLAMA3_JSON, PYTHONIC, MISTRAL, DEEPSEEK_V3, DEEPSEEK_V31, DSML, MINIMAX_M2, GLM, HARMONY,
        GEMMA, KIMI_K2, NEMOTRON, GRANITE, PHI4_MINI,
    )
}  # fmt: skip

REASONING: Final[Mapping[str, ReasoningFormat]] = {
    reasoning_format.name: reasoning_format
    for reasoning_format in (
        reasoning.THINK, reasoning.DSML, reasoning.KIMI_K2, reasoning.KIMI, reasoning.MINIMAX_M2, reasoning.MISTRAL,
        reasoning.GRANITE, reasoning.GEMMA4, reasoning.HARMONY,
    )
}  # fmt: skip

# The first row counts all of whose strings are in the template. What only one format has comes first, and what several
# have last.
_BY_TEMPLATE: Final[Sequence[tuple[tuple[str, ...], ToolFormat]]] = (
    (("<|channel|>", "<|message|>"), HARMONY),
    (("｜DSML｜",), DSML),
    (("<minimax:tool_call>",), MINIMAX_M2),
    (("<function=",), QWEN3_CODER),
    (("<arg_key>",), GLM),
    (("<|tool_calls_section_begin|>",), KIMI_K2),
    (("<｜tool▁sep｜>", "```json"), DEEPSEEK_V3),
    (("<｜tool▁sep｜>",), DEEPSEEK_V31),
    (("<TOOLCALL>",), NEMOTRON),
    (("[TOOL_CALLS]",), MISTRAL),
    (("<start_function_call>",), GEMMA),
    (("<tool_call|>",), GEMMA),
    (("```tool_code",), GEMMA),
    (("functools",), PHI4_MINI),
    (("<|/tool|>",), PHI4_MINI),
    (("<|tool_call|>",), GRANITE),
    (("<function_call>",), GRANITE),
    (("<tool_call>",), HERMES),
    (("[func_name1(",), PYTHONIC),
    (("<|python_tag|>",), LLAMA3_JSON),
    (('{"name": function name, "parameters"',), LLAMA3_JSON),
)

_REASONING_BY_TEMPLATE: Final[Sequence[tuple[tuple[str, ...], ReasoningFormat]]] = (
    (("<|channel|>", "<|message|>"), reasoning.HARMONY),
    (("<|channel>", "<channel|>"), reasoning.GEMMA4),
    (("[THINK]",), reasoning.MISTRAL),
    (("◁think▷",), reasoning.KIMI),
    (("my thought process",), reasoning.GRANITE),
    (("｜DSML｜", "</think>"), reasoning.DSML),
    (("<minimax:tool_call>", "</think>"), reasoning.MINIMAX_M2),
    (("<|tool_calls_section_begin|>", "</think>"), reasoning.KIMI_K2),
    (("</think>",), reasoning.THINK),
)

# By what model_type begins with, the longest first.
_BY_FAMILY: Final[Mapping[str, ToolFormat]] = {
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v32": DSML,
    "deepseek_v4": DSML,
    "gemma": GEMMA,
    "glm4_moe": GLM,
    "glm_moe": GLM,
    "gpt_oss": HARMONY,
    "granite": GRANITE,
    "granitemoehybrid": HERMES,
    "kimi": KIMI_K2,
    "llama": LLAMA3_JSON,
    "llama4": PYTHONIC,
    "minimax_m2": MINIMAX_M2,
    "ministral": MISTRAL,
    "mistral": MISTRAL,
    "mixtral": MISTRAL,
    "nemotron": NEMOTRON,
    "phi3": PHI4_MINI,
    "qwen2": HERMES,
    "qwen3": HERMES,
    "qwen3_5": QWEN3_CODER,
}

_REASONING_BY_FAMILY: Final[Mapping[str, ReasoningFormat]] = {
    "deepseek_v32": reasoning.DSML,
    "deepseek_v4": reasoning.DSML,
    "gemma4": reasoning.GEMMA4,
    "glm4_moe": reasoning.THINK,
    "glm_moe": reasoning.THINK,
    "gpt_oss": reasoning.HARMONY,
    "minimax_m2": reasoning.MINIMAX_M2,
    "qwen3": reasoning.THINK,
}


def format_for(family: str, template: str | None) -> ToolFormat | None:
    """How the model writes tool calls; None where nothing says that it does."""
    return _choose(_BY_TEMPLATE, _BY_FAMILY, family, template)


def reasoning_for(family: str, template: str | None) -> ReasoningFormat | None:
    """How the model writes reasoning; None where nothing says that it does."""
    return _choose(_REASONING_BY_TEMPLATE, _REASONING_BY_FAMILY, family, template)


def _choose(
    by_template: Sequence[tuple[tuple[str, ...], T]], by_family: Mapping[str, T], family: str, template: str | None
) -> T | None:
    for strings, chosen in by_template:
        if template and all(string in template for string in strings):
            return chosen
    begins = [name for name in by_family if family.startswith(name)]
    return by_family[max(begins, key=len)] if begins else None
