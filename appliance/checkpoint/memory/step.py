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

from appliance.checkpoint.experts import Experts, SharedExperts
from appliance.checkpoint.memory import compressed_step
from appliance.checkpoint.model_config import CompressedAttention, GatedDelta, Indexing, LatentAttention, ModelConfig
from kernels.context import Context
from kernels.delta_rule.workspace import workspace_bytes

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

    @property
    def widens(self) -> bool:
        """Whether a product of 16 bits with a result in float32 widens what it multiplies: torch's on a CPU."""
        return self.item < 4 and (self.torch("linear") or self.backends["linear"] == "cpp")


class Moment(NamedTuple):
    """The bytes of each tensor that is alive."""

    name: str
    tensors: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.tensors)


def moments(config: ModelConfig, shape: StepShape) -> list[Moment]:
    """Of a full step: as many tokens as may be batched, and as many sequences that sample."""
    if config.compressed_attention is not None:
        found = _compressed(config, config.compressed_attention, shape)
        return _with_multiplied_out(_with_head(found, config, shape), config, shape)
    tokens, hidden, latent = shape.tokens, config.hidden_size * shape.item, config.latent_attention
    # The residual, and what a layer is given: Python holds both until the layer ends.
    carried = (hidden, hidden, _INDEX_BYTES, *_chosen(latent))
    # What products are given is rounded as it is normed, or by the first of them.
    rounded = _rounded(config.hidden_size, shape)
    found = [
        _moment("norm", tokens, *carried, hidden, hidden, rounded, *_norm(config.hidden_size, shape)),
        Moment(SAMPLING, tuple(_sampling(config, shape))),
    ]
    # In attention its input besides, in the feed-forward layer also attention's result.
    mixing = _attention(config, shape) if latent is None else _latent_attention(config, latent, shape)
    for widths in mixing:
        found.append(_moment("attention", tokens, *carried, hidden, rounded, *widths))
    if config.gated_delta is not None:
        for widths, *others in _gated_delta(config, config.gated_delta, shape):
            moment = _moment("gated delta", tokens, *carried, hidden, *widths)
            found.append(moment._replace(tensors=(*moment.tensors, *others)))
    for widths in _feed_forward(config, shape):
        found.append(_moment("feed-forward", tokens, *carried, hidden, hidden, rounded, *widths))
    name, around = _attending(config, shape) if latent is None else _attending_to_latents(config, latent, shape)
    found += [Moment(name, (*around, tokens * rounded, *tensors)) for tensors in shape.attention]
    return _with_multiplied_out(_with_head(found, config, shape), config, shape)


def _with_head(found: list[Moment], config: ModelConfig, shape: StepShape) -> list[Moment]:
    """A head works beside the logits of the step, all hidden states or streams, the input of its projections and what
    goes into that."""
    if not config.drafts:
        return found
    fullest = max((moment for moment in found if moment.name != SAMPLING), key=lambda moment: moment.total)
    logits = min(shape.sequences, shape.tokens) * config.vocab_size * 4
    hidden, streams = shape.tokens * config.hidden_size * shape.item, _num_streams(config)
    tensors = (streams * hidden, streams * hidden, hidden, hidden, hidden)
    return [*found, Moment(fullest.name, (*fullest.tensors, logits, *tensors))]


def _num_streams(config: ModelConfig) -> int:
    return 1 if config.connections is None else config.connections.streams


def _with_multiplied_out(found: list[Moment], config: ModelConfig, shape: StepShape) -> list[Moment]:
    if dequantised := _dequantised(config, shape):
        fullest = max(found, key=lambda moment: moment.total)
        found.append(Moment("feed-forward", (*fullest.tensors, dequantised)))
    return found


def _compressed(config: ModelConfig, mixer: CompressedAttention, shape: StepShape) -> list[Moment]:
    tokens, (hidden, streams, *_) = shape.tokens, compressed_step.widths(config, shape.item)
    found = [Moment(SAMPLING, tuple(_sampling(config, shape)))]
    found += [_moment("streams", tokens, *each) for each in compressed_step.around_layers(config, shape.item)]
    found += [_moment("attention", tokens, *each) for each in compressed_step.attention(config, mixer, shape.item)]
    if shape.widens:
        each, weight = compressed_step.projecting(config, mixer, shape.item)
        found.append(Moment("attention", (*_moment("attention", tokens, *each).tensors, weight)))
    _, around = _moment("attention", tokens, *compressed_step.attending(config, mixer, shape.item))
    found += [Moment("attention", (*around, *tensors)) for tensors in shape.attention]
    given = (hidden, hidden, _rounded(config.hidden_size, shape))
    for each in _feed_forward(config, shape):
        found.append(_moment("feed-forward", tokens, streams, streams, _INDEX_BYTES, *given, *each))
    return found


def _moment(name: str, tokens: int, *widths: int) -> Moment:
    """`widths` are bytes for each token."""
    return Moment(name, tuple(tokens * width for width in widths))


def _norm(width: int, shape: StepShape) -> tuple[int, ...]:
    """Beside input and residual: the result, or torch's in float32, as such and squared."""
    return (4 * width, 4 * width) if shape.torch("rms_norm") else (width * shape.item,)


def _qkv(config: ModelConfig, shape: StepShape) -> tuple[int, int, tuple[int, ...]]:
    """Bytes of a token's query and key, and of the tensors that hold them, beside a gate where there is one: those
    normed over all heads are copied."""
    item = shape.item
    query, key = (
        config.num_attention_heads * config.head_dim * item,
        config.num_key_value_heads * config.head_dim * item,
    )
    projected = query + 2 * key + (query if config.gates_attention else 0)
    return query, key, (projected, query, key) if config.qk_norm == "all" else (projected,)


def _attention(config: ModelConfig, shape: StepShape) -> Iterator[tuple[int, ...]]:
    """All moments of attention but that within its backend."""
    query, key, held = _qkv(config, shape)
    yield (held[0],)
    if config.qk_norm == "all":
        yield held[0], *_norm(query // shape.item, shape)
    if shape.torch("rotary_cache"):
        if config.qk_norm == "head":
            held = (*held, key)
            yield *held, 4 * query // shape.item, 4 * query // shape.item
        turned = query * config.rotary_dim // config.head_dim
        yield *held, turned, turned
    if config.gates_attention:
        yield *held, query, query
    yield *held, query, config.hidden_size * shape.item, _rounded(query // shape.item, shape)


def _attending(config: ModelConfig, shape: StepShape) -> Moment:
    """Torch's attention gives a result of each sequence, which is then copied to its place."""
    query, _, held = _qkv(config, shape)
    hidden = config.hidden_size * shape.item
    results = (query, query) if shape.torch("paged_attention") else (query,)
    return _moment("attention", shape.tokens, hidden, hidden, _INDEX_BYTES, hidden, *held, *results)


def _latent_attention(config: ModelConfig, mixer: LatentAttention, shape: StepShape) -> Iterator[tuple[int, ...]]:
    """As `_attention`. All that is projected from the hidden state is there until the end."""
    item, hidden = shape.item, config.hidden_size
    held = _latents(config, mixer, shape)
    value = config.num_attention_heads * mixer.value_dim
    yield (held[0],)
    if mixer.query_rank is not None:
        yield held[0], *_norm(mixer.query_rank, shape)
        yield *held, mixer.query_rank * item, _rounded(mixer.query_rank, shape)
    if shape.torch("latent_cache"):
        turned = config.num_attention_heads * mixer.rope_dim * item
        yield *held, turned, turned, turned
    yield *held, value * item, hidden * item, _rounded(value, shape)
    if mixer.indexing is not None:
        yield *held, value * item, value * item  # of decodes and of prefills, and both together
        yield from _indexing(config, mixer, mixer.indexing, shape)


def _indexing(
    config: ModelConfig, mixer: LatentAttention, indexing: Indexing, shape: StepShape
) -> Iterator[tuple[int, ...]]:
    """Of an indexer, as `_attention`: from the latents of queries, before these become attention's own."""
    item, query = shape.item, indexing.num_heads * indexing.head_dim
    rank = mixer.query_rank or 0
    weights, key = indexing.num_heads * 4, indexing.head_dim * item
    held = ((rank + mixer.latent_dim) * item, rank * item, query * item)
    yield *held, _rounded(rank, shape)
    yield *held, 4 * config.hidden_size if item < 4 else 0, weights
    yield *held, weights, key, _rounded(config.hidden_size, shape)
    if not shape.torch("index_cache"):
        yield *held, weights, key, query, weights
    elif item == 4:
        turned = indexing.num_heads * mixer.rope_dim * item
        yield *held, weights, key, turned, turned, turned
    else:  # transformed and rounded in float32
        yield *held, weights, key, *(3 * (4 * query,))


def _chosen(mixer: LatentAttention | None) -> tuple[int, ...]:
    """The tokens that each query sees, which are kept for later layers."""
    return (4 * mixer.indexing.top_k + 4,) if mixer is not None and mixer.indexing is not None else ()


def _attending_to_latents(config: ModelConfig, mixer: LatentAttention, shape: StepShape) -> Moment:
    """As `_attending`."""
    hidden, result = config.hidden_size * shape.item, config.num_attention_heads * mixer.value_dim * shape.item
    held = _latents(config, mixer, shape)
    return _moment("attention", shape.tokens, hidden, hidden, _INDEX_BYTES, hidden, *_chosen(mixer), *held, result)


def _latents(config: ModelConfig, mixer: LatentAttention, shape: StepShape) -> tuple[int, ...]:
    """Bytes of what is projected from a token's hidden state, and of its query where that is not among it."""
    query = config.num_attention_heads * mixer.query_dim
    if mixer.query_rank is None:
        return ((query + mixer.latent_dim) * shape.item,)
    return (mixer.query_rank + mixer.latent_dim) * shape.item, query * shape.item


def _gated_delta(
    config: ModelConfig, mixer: GatedDelta, shape: StepShape
) -> Iterator[tuple[tuple[int, ...], *tuple[int, ...]]]:
    """Of such a layer: bytes for each token, and of other tensors. What is projected, and what the convolution gives,
    is there until the end."""
    item, heads = shape.item, mixer.num_value_heads
    channels, values = mixer.conv_channels * item, heads * mixer.value_dim * item
    projected = channels + values + 2 * heads * item
    held, result = (projected, channels), config.hidden_size * item
    yield ((projected, _rounded(config.hidden_size, shape)),)
    copied = 0 if item == 4 else 4  # torch computes in float32
    if shape.torch("causal_conv"):
        # The inputs with those before, and their sums; of a decode as many for each of its products.
        yield ((*held, channels, (4 + copied) * mixer.conv_channels),)
        window = min(shape.sequences, shape.tokens) * mixer.conv_channels * mixer.conv_width
        yield held, window * item, window * 4, window * copied
    yield (*held, values), _delta_rule(mixer, shape)
    if shape.torch("gated_norm"):
        yield ((*held, values, *(3 * (values // item * 4,))),)
    yield ((*held, values, values),)
    yield ((*held, values, result, _rounded(values // item, shape)),)


def _delta_rule(mixer: GatedDelta, shape: StepShape) -> int:
    context = Context(
        "",
        gated_delta_head_dim=mixer.key_dim,
        gated_delta_value_dim=mixer.value_dim,
        gated_delta_key_heads=mixer.num_key_heads,
        gated_delta_value_heads=mixer.num_value_heads,
    )
    return workspace_bytes(shape.backends.get("delta_rule", "torch"), context, shape.tokens, shape.sequences)


def _feed_forward(config: ModelConfig, shape: StepShape) -> Iterator[tuple[int, ...]]:
    """Of dense and sparse layers, where there are such."""
    if config.experts is not None:
        yield from _sparse(config.experts, config.hidden_size, shape)
        if len(config.experts.layers) == config.num_hidden_layers:
            return
    yield from _gated(config.hidden_size, config, shape)


def _gated(hidden: int, layer: ModelConfig | SharedExperts, shape: StepShape) -> Iterator[tuple[int, ...]]:
    """Of a gated feed-forward layer: gate and up, their product, and the result."""
    inner = layer.intermediate_size * shape.item
    yield (2 * inner,)
    yield 2 * inner, inner
    yield inner, hidden * shape.item, _rounded(layer.intermediate_size, shape)


def _sparse(experts: Experts, hidden: int, shape: StepShape) -> Iterator[tuple[int, ...]]:
    item, inner, top_k = shape.item, experts.intermediate_size, experts.routing.top_k
    clamped = () if experts.limit is None else (inner * item, inner * item)
    logits, chosen = experts.num_experts * (4 if experts.router_dtype else item), top_k * 8
    added = 0
    if experts.shared is not None:
        added = hidden * item
        of_shared = experts.shared.intermediate_size * item if clamped and shape.torch("gated_activation") else 0
        for widths in _gated(hidden, experts.shared, shape):
            yield *widths, 2 * of_shared
    if experts.router_dtype and shape.widens:
        yield added, logits, 4 * hidden, -(-4 * hidden * experts.num_experts // shape.tokens)
    if shape.torch("moe_routing"):  # widened, as scores, and sorted with their places
        yield added, logits, *(experts.num_experts * size for size in (4, 4, 4, 8))
    if shape.torch("fused_moe"):
        # One expert may get every token: its copy of them, gate and up with their product, while the last one's result
        # is still there; then its own as computed, in float32 and weighted. Beside that the sum in float32, and which
        # tokens and choices they are.
        others = (added, logits, chosen, 4 * hidden, 17 + top_k)
        yield *others, hidden * item, hidden * item, 2 * inner * item
        yield *others, hidden * item, 2 * inner * item, inner * item, *clamped
        yield *others, hidden * item, 4 * hidden, 4 * hidden
        return
    # In FP8 the inner result is rounded too, where the GPU multiplies in it; older ones keep it whole.
    results = (top_k * hidden * item, top_k * (inner * item + 8))
    yield added, logits, chosen, hidden * item, *results


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
        matrices += [_projected(config)]
        if config.experts is None or len(config.experts.layers) < config.num_hidden_layers:
            matrices += [2 * hidden * config.intermediate_size]
    if shape.torch("fused_moe") and config.experts is not None:
        matrices += [3 * hidden * config.experts.intermediate_size]  # an expert's both
    return max(matrices) * 12


def _projected(config: ModelConfig) -> int:
    """Numbers in the largest matrix that a layer multiplies by before its feed-forward layer."""
    hidden, heads = config.hidden_size, config.num_attention_heads
    mixer, delta, compressed = config.latent_attention, config.gated_delta, config.compressed_attention
    if compressed is not None:
        from_latent, out = heads * config.head_dim, compressed.num_groups * compressed.group_rank
        if compressed.indexing is not None:
            from_latent = max(from_latent, compressed.indexing.num_heads * compressed.indexing.head_dim)
        first = compressed.query_rank + config.head_dim
        grouped = compressed.group_rank * heads * config.head_dim
        return max(hidden * first, from_latent * compressed.query_rank, grouped, hidden * out)
    if mixer is None:
        attention = (heads * (1 + config.gates_attention) + 2 * config.num_key_value_heads) * config.head_dim
        linear = 0 if delta is None else delta.conv_channels + delta.num_value_heads * delta.value_dim
        return hidden * max(attention, linear)
    query, rank = heads * mixer.query_dim, mixer.query_rank
    if mixer.indexing is not None:
        query = max(query, mixer.indexing.num_heads * mixer.indexing.head_dim)
    first = query if rank is None else rank
    return max(hidden * (first + mixer.latent_dim), query * (rank or 0), hidden * heads * mixer.value_dim)


def _sampling(config: ModelConfig, shape: StepShape) -> Iterator[int]:
    """A logit of each sequence that samples, in float32, beside its log probability; as it was computed, it needs less
    than that one."""
    rows = min(shape.sequences, shape.tokens)
    logits = rows * config.vocab_size
    yield logits * 4
    yield logits * 4
    if config.ranks > 1:  # what this rank computed, while those of all are put in order
        yield rows * config.vocab_rows * shape.item
    if not shape.torch("sampling"):
        yield rows * shape.history * _EDIT_BYTES
        yield int(logits * _NOTED_BYTES)
