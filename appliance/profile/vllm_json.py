"""What may stand in the JSON of a vLLM flag: keys as rows, and values that name no code and no file.

vLLM takes some of these for names of functions that it imports, or for folders that it writes; none of them is here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from appliance.profile.shown import clipped

# A number's format, an operator, a backend's registered name: never a path, and never a dotted name of code. Operators
# are of a namespace (vllm::unified_attention), and switched by a sign (+rms_norm).
_WORD: Final = re.compile(r"[+-]?[A-Za-z0-9_-]{0,64}(::[A-Za-z0-9_]{1,64})?")


class Object(msgspec.Struct, frozen=True):
    """`keys` are all that are allowed, and `inside` those that are objects themselves. Of what is the model's own
    affair no list can have all: then `refused` is what is not allowed. A text is a word, unless it is `free`."""

    keys: frozenset[str] = frozenset()
    inside: dict[str, Object] = {}
    refused: str | None = None
    free: bool = False


# Keys by which transformers finds code and files.
_OF_THE_MODEL: Final = Object(
    refused=r"_.*|auto_map|custom_.*|.*_class|.*(path|dir|file|folder|plugin|url|cls|revision)|trust_remote_code|token"
    r"|chat_template|use_auth_token|proxies|subfolder|local_files_only|force_download"
)
# Variables of a template are shown to the model, whatever they are.
_OF_A_TEMPLATE: Final = Object(refused="chat_template|tokenize", free=True)

OBJECTS: Final[dict[str, Object]] = {
    "compilation-config": Object(
        keys=frozenset({
            "backend", "compile_mm_encoder", "compile_ranges_endpoints", "compile_sizes", "cudagraph_capture_sizes",
            "cudagraph_copy_inputs", "cudagraph_mm_encoder", "cudagraph_mode", "cudagraph_num_of_warmups",
            "custom_ops", "encoder_cudagraph_max_frames_per_batch", "encoder_cudagraph_max_vision_items_per_batch",
            "encoder_cudagraph_token_budgets", "fast_moe_cold_start", "ir_enable_torch_wrap",
            "max_cudagraph_capture_size", "mode", "splitting_ops", "use_inductor_graph_partition",
        }),
        inside={
            "dynamic_shapes_config": Object(keys=frozenset({"assume_32_bit_indexing", "evaluate_guards", "type"})),
            "inductor_compile_config": Object(
                keys=frozenset({
                    "benchmark_combo_kernel", "combo_kernels", "coordinate_descent_tuning", "epilogue_fusion",
                    "max_autotune", "max_autotune_gemm", "max_autotune_pointwise", "shape_padding",
                })
            ),
            "pass_config": Object(
                keys=frozenset({
                    "eliminate_noops", "enable_qk_norm_rope_fusion", "fi_allreduce_fusion_max_size_mb",
                    "fuse_act_padding", "fuse_act_quant", "fuse_allreduce_rms", "fuse_attn_quant",
                    "fuse_mla_dual_rms_norm", "fuse_norm_quant", "fuse_qk_norm_rope_kvcache", "fuse_rope_kvcache",
                    "fuse_rope_kvcache_cat_mla", "rope_kvcache_fusion_max_token_num",
                })
            ),
        },
    ),
    "default-chat-template-kwargs": _OF_A_TEMPLATE,
    "hf-overrides": _OF_THE_MODEL,
    "limit-mm-per-prompt": Object(
        inside=dict.fromkeys(
            ("audio", "image", "video"), Object(keys=frozenset({"count", "height", "length", "num_frames", "width"}))
        )
    ),
    "mm-processor-kwargs": _OF_THE_MODEL,
    "pooler-config": Object(
        keys=frozenset({
            "dimensions", "enable_chunked_processing", "enable_flash_late_interaction", "logit_mean", "logit_sigma",
            "max_embed_len", "pooling_type", "returned_token_ids", "seq_pooling_type", "step_tag_id", "task",
            "tok_pooling_type", "use_activation",
        })
    ),
    "structured-outputs-config": Object(
        keys=frozenset({
            "backend", "disable_additional_properties", "disable_any_whitespace", "enable_in_reasoning",
            "reasoning_parser",
        })
    ),
}  # fmt: skip


def json_problem(flag: str, text: str) -> str | None:
    """What is wrong with the value of a flag of kind json; None where nothing is."""
    try:
        given = json.loads(text)
        if not isinstance(given, dict):
            return 'Must be a JSON object, such as {"a": 1}.'
        return next(_problems(OBJECTS[flag], given, ""), None)
    except ValueError as error:
        return f"Not JSON: {error}."
    except RecursionError:
        return "Nested too deeply."


def _problems(allowed: Object, given: dict[str, Any], above: str) -> Iterator[str]:
    for key, value in given.items():
        where = f"{above}.{key}" if above else key
        if allowed.refused is not None:
            if re.fullmatch(allowed.refused, key):
                yield f"`{_shown(where)}` is not allowed: it could make vLLM load files from outside the model folder."
            yield from _value_problems(allowed, value, where)
        elif key in allowed.inside:  # some are a plain number as well: {"image": 4}
            yield from _value_problems(allowed.inside[key], value, where)
        elif key in allowed.keys:
            yield from _value_problems(Object(), value, where)
        else:
            known = ", ".join(sorted(allowed.keys | allowed.inside.keys())) or "nothing"
            yield f"`{_shown(where)}` is not on the list of allowed keys: {known}."


def _value_problems(allowed: Object, value: Any, where: str) -> Iterator[str]:
    if isinstance(value, dict):
        yield from _problems(allowed, value, where)
    elif isinstance(value, list):
        for item in value:
            yield from _value_problems(allowed, item, where)
    elif isinstance(value, str) and not allowed.free and not _WORD.fullmatch(value):
        yield (
            f"`{_shown(where)}` must be a number, true, false or a plain word; paths and dotted names are not allowed."
        )


def _shown(where: str) -> str:
    """JSON can hold any character by its number."""
    return clipped(ascii(where)[1:-1])
