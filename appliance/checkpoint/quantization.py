"""`quantization_config` of a model: block-scaled FP8, the one form of quantised weights that the engine runs.

Linear weights are float8_e4m3fn with a scale in `<name>.weight_scale_inv` for each block of 128 x 128, by which it is
multiplied (DeepSeek-AI, 2024, section 3.3). Embedding, head, routers and the weights of an indexer's heads
are never quantised, whatever the config says.

DeepSeek V4 has the scales in `<name>.scale`, as powers of two in a byte each (e8m0), and may have its experts in MXFP4:
two numbers of four bits a byte, the first in the lower half, with a scale for each 32 of a row (OCP MX, 2023).
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Any, Final, NoReturn

import msgspec

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.fields import Fields

BLOCK: Final = 128
MX_BLOCK: Final = 32
KEY: Final = "quantization_config"

# What each key may say, in lower case. An absent key is as good as the first.
_ALLOWED: Final[dict[str, tuple[str, ...]]] = {
    "activation_scheme": ("dynamic",),
    "fmt": ("e4m3", "float8_e4m3fn", "e4m3fn"),
    "scale_fmt": ("float", "ue8m0"),  # powers of two, in float32 like any others (DeepSeek V3.1)
    "expert_dtype": ("fp8",),
}
EXPERT_DTYPES: Final = ("fp8", "fp4")
_SCALES: Final = ("_scale_inv", ".scale")
_MODULE: Final = re.compile(r"[\w.-]{1,256}")


class BlockFp8(msgspec.Struct, frozen=True):
    """`skipped` are modules that are not quantised: whole names, their beginnings or their ends, between dots. `scale`
    is what the name of a scale has in place of `.weight`. With `fp4_experts` those are in MXFP4, as `in_fp4` says."""

    skipped: frozenset[str] = frozenset()
    scale: str = ".weight_scale_inv"
    fp4_experts: bool = False

    def in_fp4(self, module: str) -> bool:
        return self.fp4_experts and ".experts." in module

    def covers(self, module: str) -> bool:
        """Whether the linear layer `module` is quantised."""
        if not self.skipped:
            return True
        parts = module.split(".")
        beginnings = (".".join(parts[: i + 1]) for i in range(len(parts)))
        ends = (".".join(parts[i:]) for i in range(len(parts)))
        return self.skipped.isdisjoint((*beginnings, *ends))


def is_scale(name: str) -> bool:
    """Of a tensor."""
    return name.endswith(_SCALES)


def scale_of(weight: str, names: Container[str]) -> str | None:
    """That of the tensor `weight` among `names`."""
    module = weight.removesuffix(".weight")
    return next((scale for end in (".weight_scale_inv", ".scale") if (scale := module + end) in names), None)


def weight_of(scale: str) -> str:
    """The tensor that has it."""
    return scale.removesuffix("_scale_inv") if scale.endswith("_scale_inv") else scale.removesuffix("scale") + "weight"


def read_quantization(fields: Fields, experts: tuple[str, ...] = ("fp8",)) -> BlockFp8 | None:
    """None for a model that is not quantised. Raises CheckpointError for one that is so in another way."""
    given = fields.mapping(KEY)
    if given is None:
        return None
    inner = fields.inside(KEY)
    method = given.get("quant_method")
    if method != "fp8":
        name = method if isinstance(method, str) and method.isprintable() else "an unnamed method"
        _refuse(fields, "", name[:40], f"The checkpoint is quantised ({name[:40]}).")
    for key, allowed in (_ALLOWED | {"expert_dtype": experts}).items():
        word = inner.text(key, default=allowed[0])
        if word.lower() not in allowed:
            _refuse(fields, key, word, f"The checkpoint is quantised to FP8 with {key} {word}.")
    size, others = given.get("weight_block_size"), given.get("modules_to_convert")
    if size != [BLOCK, BLOCK]:
        blocks = "without blocks" if size is None else f"in blocks of {ascii(size)[:40]}"
        _refuse(fields, "weight_block_size", size, f"The checkpoint is quantised to FP8 {blocks}.")
    if others:
        _refuse(
            fields, "modules_to_convert", others, "The checkpoint's quantisation covers more than its linear layers."
        )
    key = "modules_to_not_convert" if given.get("modules_to_not_convert") is not None else "ignored_layers"
    return BlockFp8(_modules(inner, key))


def _modules(inner: Fields, key: str) -> frozenset[str]:
    names = inner.given.get(key)
    if names is None:
        return frozenset()
    if not isinstance(names, list) or not all(isinstance(name, str) and _MODULE.fullmatch(name) for name in names):
        inner.refuse(key, "Must be a list of module names; patterns are not supported.")
    return frozenset(names)


def refuse_layer(fields: Fields, module: str, why: str) -> NoReturn:
    """Of a linear layer whose place in the quantisation, or whose shape, the engine cannot take."""
    _refuse(fields, "", module, f"The checkpoint is quantised to FP8, and {module} {why}.")


def _refuse(fields: Fields, key: str, value: Any, what: str) -> NoReturn:
    raise CheckpointError(
        "quantization-unsupported",
        what,
        file=fields.file,
        field=f"{KEY}.{key}" if key else KEY,
        value=value,
        evidence=(f"supported: fp8 (e4m3) in blocks of {BLOCK} x {BLOCK}, activations scaled dynamically",),
        remedy="Use the model with block-scaled FP8 or unquantised weights; "
        "many other formats run with `engine: vllm`.",
    )
