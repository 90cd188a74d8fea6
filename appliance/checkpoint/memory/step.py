"""What the native engine holds at the fullest moments of one step, beside weights and cache, derived from the model's
shape and the chosen backends by following the tensors that are alive at once.

A step is a chain of norms, attention and feed-forward layers, then the head and the sampling; what one leaves behind is
freed before the next begins, so that the fullest of them decides. `tests/kernels/test_workspace.py` holds these numbers
to the tensors that the engine really makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from appliance.checkpoint.experts import Experts
from appliance.checkpoint.model_config import ModelConfig

SAMPLING: Final = "sampling"
# What Triton's sampling notes of each 4096 logits: numbers and masses at 16 thresholds, and three results.
_NOTED_BYTES: Final = (16 * 8 + 16) / 4096
# What a GPU's step makes of each token of a history on its way to the logits: an edit, and where it is gathered from.
_EDIT_BYTES: Final = 28
# Of a token: its id, its position and its place in the cache.
_INDEX_BYTES: Final = 24


class StepShape(msgspec.Struct, frozen=True, kw_only=True):
    """The most that a step computes, and how. `backends` names the chosen one of each op; `fp8` says that weights are
    kept in block-scaled FP8; `item` is the bytes of a number in the model's dtype; `history` is how many tokens each
    sequence's penalties count. `attention` is what the backend of
    attention works in, tensor by tensor, at each moment that may be its fullest."""

    tokens: int
    sequences: int
    item: int
    fp8: bool
    backends: Mapping[str, str]
    history: int = 0
    attention: tuple[tuple[int, ...], ...] = ()

    def torch(self, op: str) -> bool:
        """Whether `op` is computed by torch or one of its libraries, which keep intermediate results."""
        return self.backends.get(op, "torch") in ("torch", "onednn")


class Moment(NamedTuple):
    """The bytes of each tensor that is alive."""

    name: str
    tensors: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.tensors)


def moments(config: ModelConfig, shape: StepShape) -> list[Moment]:
    """Of a full step: as many tokens as may be batched, and as many sequences that sample."""
    tokens, hidden = shape.tokens, config.hidden_size * shape.item
    # The residual, and what a layer is given: Python holds both until the layer ends.
    carried = (hidden, hidden, _INDEX_BYTES)
    found = [
        _moment("norm", tokens, *carried, hidden, hidden, *_norm(config.hidden_size, shape)),
        Moment(SAMPLING, tuple(_sampling(config, shape))),
    ]
    # In attention its input besides, in the feed-forward layer also attention's result.
    for widths in _attention(config, shape):
        found.append(_moment("attention", tokens, *carried, hidden, *widths))
    for widths in _feed_forward(config, shape):
        found.append(_moment("feed-forward", tokens, *carried, hidden, hidden, *widths))
    name, around = _attending(config, shape)
    found += [Moment(name, (*around, *tensors)) for tensors in shape.attention]
    if dequantised := _dequantised(config, shape):
        fullest = max(found, key=lambda moment: moment.total)
        found.append(Moment("feed-forward", (*fullest.tensors, dequantised)))
    return found


def _moment(name: str, tokens: int, *widths: int) -> Moment:
    """`widths` are bytes for each token."""
    return Moment(name, tuple(tokens * width for width in widths))


def _norm(width: int, shape: StepShape) -> tuple[int, ...]:
    """Beside input and residual: the result, or torch's in float32, as such and squared."""
    return (4 * width, 4 * width) if shape.torch("rms_norm") else (width * shape.item,)


def _qkv(config: ModelConfig, shape: StepShape) -> tuple[int, int, tuple[int, ...]]:
    """Bytes of a token's query and key, and of the tensors that hold them: those normed over all heads are copied."""
    item = shape.item
    query, key = (
        config.num_attention_heads * config.head_dim * item,
        config.num_key_value_heads * config.head_dim * item,
    )
    return query, key, (query + 2 * key, query, key) if config.qk_norm == "all" else (query + 2 * key,)


def _attention(config: ModelConfig, shape: StepShape) -> Iterator[tuple[int, ...]]:
    """All moments of attention but that within its backend."""
    query, key, held = _qkv(config, shape)
    yield held[0], _rounded(config.hidden_size, shape)
    if config.qk_norm == "all":
        yield held[0], *_norm(query // shape.item, shape)
    if shape.torch("rotary_cache"):
        if config.qk_norm == "head":
            held = (*held, key)
            yield *held, 4 * query // shape.item, 4 * query // shape.item
        turned = query * config.rotary_dim // config.head_dim
        yield *held, turned, turned
    yield *held, query, config.hidden_size * shape.item, _rounded(query // shape.item, shape)


def _attending(config: ModelConfig, shape: StepShape) -> Moment:
    """Torch's attention gives a result of each sequence, which is then copied to its place."""
    query, _, held = _qkv(config, shape)
    hidden = config.hidden_size * shape.item
    results = (query, query) if shape.torch("paged_attention") else (query,)
    return _moment("attention", shape.tokens, hidden, hidden, _INDEX_BYTES, hidden, *held, *results)


def _feed_forward(config: ModelConfig, shape: StepShape) -> Iterator[tuple[int, ...]]:
    """Of dense and sparse layers, where there are such."""
    if config.experts is not None:
        yield from _sparse(config.experts, config.hidden_size, shape)
        if len(config.experts.layers) == config.num_hidden_layers:
            return
    inner, hidden = config.intermediate_size * shape.item, config.hidden_size * shape.item
    yield 2 * inner, _rounded(config.hidden_size, shape)
    yield 2 * inner, inner
    yield inner, hidden, _rounded(config.intermediate_size, shape)


def _sparse(experts: Experts, hidden: int, shape: StepShape) -> Iterator[tuple[int, ...]]:
    item, inner, top_k = shape.item, experts.intermediate_size, experts.routing.top_k
    logits, chosen = experts.num_experts * item, top_k * 8
    if shape.torch("moe_routing"):  # widened, as scores, and sorted with their places
        yield logits, *(experts.num_experts * size for size in (4, 4, 4, 8))
    if shape.torch("fused_moe"):
        # One expert may get every token: its copy of them, gate and up with their product, while the last one's result
        # is still there; then its own as computed, in float32 and weighted. Beside that the sum in float32, and which
        # tokens and choices they are.
        others = (logits, chosen, 4 * hidden, 17 + top_k)
        yield *others, hidden * item, hidden * item, 2 * inner * item
        yield *others, hidden * item, 2 * inner * item, inner * item
        yield *others, hidden * item, 4 * hidden, 4 * hidden
        return
    # In FP8 the inner result is rounded too, where the GPU multiplies in it; older ones keep it whole.
    results = (top_k * hidden * item, top_k * (inner * item + 8), _rounded(hidden, shape))
    yield logits, chosen, hidden * item, *results


def _rounded(columns: int, shape: StepShape) -> int:
    """An input rounded to FP8, with a scale for each 128."""
    if not shape.fp8 or shape.torch("fp8_linear"):
        return 0
    return columns + -(-columns // 128) * 4


def _dequantised(config: ModelConfig, shape: StepShape) -> int:
    """FP8 weights that torch multiplies by are multiplied out for each product, in float32 first."""
    if not shape.fp8:
        return 0
    hidden, matrices = config.hidden_size, [0]
    if shape.torch("fp8_linear"):
        query, key = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        matrices += [hidden * (query + 2 * key)]
        if config.experts is None or len(config.experts.layers) < config.num_hidden_layers:
            matrices += [2 * hidden * config.intermediate_size]
    if shape.torch("fused_moe") and config.experts is not None:
        matrices += [3 * hidden * config.experts.intermediate_size]  # an expert's both
    return max(matrices) * 12


def _sampling(config: ModelConfig, shape: StepShape) -> Iterator[int]:
    """A logit of each sequence that samples, in float32, beside its log probability; as it was computed, it needs less
    than that one."""
    rows = min(shape.sequences, shape.tokens)
    logits = rows * config.vocab_size
    yield logits * 4
    yield logits * 4
    if not shape.torch("sampling"):
        yield rows * shape.history * _EDIT_BYTES
        yield int(logits * _NOTED_BYTES)
