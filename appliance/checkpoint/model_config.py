"""The shape of a model, as `config.read_config` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from appliance.checkpoint.cache_specs import (
    CacheSpec,
    Compressed,
    CompressedKeys,
    Indexer,
    RingPart,
    SlidingWindow,
    State,
    StatePart,
    block_multiple,
)
from appliance.checkpoint.experts import Experts
from appliance.checkpoint.quantization import BlockFp8
from kernels.chains import places

# `hidden_act` in the words of the op that computes it; "gelu_new" and similar names are the approximation with tanh.
ACTIVATIONS: Final[Mapping[str, str]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}

STATE_DTYPE: Final = "float32"  # of the gated delta rule's recurrence


class Attention(msgspec.Struct, frozen=True):
    """Softmax attention over the last `window` tokens; over all of them where that is None. `gated`: its result is
    multiplied by the sigmoid of a gate, which is projected together with the query."""

    window: int | None = None
    gated: bool = False


class Indexing(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are chosen for sparse attention (DeepSeek-V3.2, arXiv 2512.02556): a query sees the `top_k` with the
    largest sum over `num_heads` of a weight times max(q k, 0). Heads and keys have `head_dim` numbers, of which as many
    turn with the position as in attention itself, `interleaved` in neighbouring pairs or else over halves. Where a
    cache is not in float32, queries and keys are rounded: to MXFP4 if that is set, else to 8 bits."""

    num_heads: int
    head_dim: int
    top_k: int
    interleaved: bool
    mxfp4: bool = False


class LatentAttention(msgspec.Struct, frozen=True, kw_only=True):
    """Multi-head latent attention (MLA). A head's query and key have `nope_dim` numbers and `rope_dim` that turn with
    the position, its value has `value_dim`; keys and values are made from a latent of `kv_rank`, queries from one of
    `query_rank`, or from the hidden state itself where that is None. Scores are multiplied by `scale`. `norm_eps` is
    that of the norms of both latents. With `indexing` only the tokens that it chooses are attended to."""

    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    scale: float
    norm_eps: float
    indexing: Indexing | None = None

    @property
    def query_dim(self) -> int:
        """Of a head."""
        return self.nope_dim + self.rope_dim

    @property
    def latent_dim(self) -> int:
        """What the cache holds of a token."""
        return self.kv_rank + self.rope_dim


class GatedDelta(msgspec.Struct, frozen=True, kw_only=True):
    """The gated delta rule (arXiv 2412.06464) behind a causal convolution over `conv_width` tokens. Each key head
    serves as many neighbouring value heads. `packed`: the checkpoint has its projections interleaved by key head.
    `drafts`: so many tokens of a step may be rejected, of which it keeps what the state takes (`kernels.chains`)."""

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    packed: bool = False
    drafts: int = 0

    @property
    def conv_channels(self) -> int:
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * self.value_dim

    @property
    def state(self) -> State:
        """The matrix of each head, and the last inputs of the convolution. Of drafts what goes into these: inputs, then
        keys, values and gates."""
        heads, keys = self.num_value_heads, self.num_key_heads
        matrices = StatePart((heads, self.key_dim, self.value_dim), STATE_DTYPE)
        parts = [matrices, StatePart((self.conv_channels, self.conv_width - 1))]
        if self.drafts:
            of_drafts = ((self.conv_channels,), (keys, self.key_dim), (heads, self.value_dim), (2, heads))
            parts += [StatePart((places(self.drafts), *shape)) for shape in of_drafts]
        return State(parts=tuple(parts))


class CompressedAttention(msgspec.Struct, frozen=True, kw_only=True):
    """DeepSeek-V4's attention. A token has one entry of the heads' size, key and value of all of them, whose last
    `rope_dim` numbers turn by `rope_theta` and `rope_scaling`; queries are made from a latent of `query_rank`. A query
    sees the last `window` entries, and of all tokens compressed ones, each of `ratio` tokens (0: none) and of those
    before where they `overlap`. With `indexing` those are seen that it chooses, else all. Results are projected in
    `num_groups` of heads, to `group_rank` numbers each, and these together. `drafts`: so many tokens of a step may be
    rejected, for which what it keeps of the last tokens has further places, so that they overwrite none."""

    window: int
    query_rank: int
    rope_dim: int
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    num_groups: int
    group_rank: int
    ratio: int = 0
    overlap: bool = False
    indexing: Indexing | None = None
    drafts: int = 0

    def width(self, dim: int) -> int:
        """Numbers of a token's values, and of its gates, of which entries of `dim` numbers are made."""
        return 2 * dim if self.overlap else dim

    def projected(self, head_dim: int) -> list[int]:
        """How many numbers a token's hidden state is projected to: for entries, and with an indexer for its keys and
        for the weights of its heads."""
        if not self.ratio:
            return []
        if self.indexing is None:
            return [2 * self.width(head_dim)]
        return [2 * self.width(head_dim), 2 * self.width(self.indexing.head_dim), self.indexing.num_heads]

    def state(self, head_dim: int) -> State:
        """The window, and what the next entries and the next keys are made of."""
        parts: list[RingPart | StatePart] = [RingPart(self.window + self.drafts, head_dim, self.rope_dim)]
        kept = (2 * self.ratio if self.overlap else self.ratio) + self.drafts
        sizes = [head_dim] * (self.ratio > 0) + ([self.indexing.head_dim] if self.indexing is not None else [])
        parts += [StatePart((kept, 2 * self.width(size)), STATE_DTYPE) for size in sizes]
        return State(parts=tuple(parts))


Mixer = Attention | LatentAttention | GatedDelta | CompressedAttention


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """How a layer mixes tokens, and what it keeps of them; `index` where it has an indexer of its own, rather than the
    tokens that one before it chose; `compressed` beside a window of tokens as they are."""

    mixer: Mixer
    cache: CacheSpec
    compressed: Compressed | None = None
    index: Indexer | CompressedKeys | None = None

    @property
    def caches(self) -> tuple[CacheSpec, ...]:
        """All that it keeps."""
        return tuple(spec for spec in (self.cache, self.compressed, self.index) if spec is not None)


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """A layer behind a model's others that predicts one token further (`checkpoint.drafting`). The names of its tensors
    are here: what those of its `layer` begin with, its norms, and what it multiplies by, one matrix for the embedding
    and the hidden state side by side, or one for each. `copies` are what names of tensors begin with that the model has
    already."""

    layer: Layer
    prefix: str
    embedding_norm: str
    hidden_norm: str
    projections: tuple[str, ...]
    norm: str
    copies: tuple[str, ...] = ()


class HyperConnections(msgspec.Struct, frozen=True, kw_only=True):
    """Residual `streams`, mixed around every sub-layer (mHC, arXiv 2512.24880) by matrices that `iterations` rounds
    make doubly stochastic; `eps` is that of weights and denominators."""

    streams: int
    iterations: int
    eps: float


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder's shape. `rope_scaling` is None for plain RoPE, otherwise a dict with `rope_type` always there;
    `layers` has an entry for each of the `num_hidden_layers`. `qk_norm` is "head" where each
    head of query and key is normalised by itself, "all" where all heads of a token are together, and otherwise "".
    `intermediate_size` is that of the dense layers; `experts` is None for a model without sparse ones. `norm_offset` is
    added to the weights of the norms. `prefix` is what the checkpoint puts before the names of the decoder's tensors;
    the names of those that the engine has no use for begin with one of `ignored`. `connections` are there where the
    residual is of several streams. `head` is there where the engine can use one; where it does, the head's layer is the
    last of `layers`, and the config `drafts` (`drafting.with_head`). `ranks` share the model; where that is more than
    one, heads and sizes are those of one rank (`sharding.sharded`).
    """

    architecture: str
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    hidden_act: str
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    rotary_dim: int
    tie_word_embeddings: bool
    attention_bias: bool
    attention_output_bias: bool
    mlp_bias: bool
    qk_norm: str
    layers: tuple[Layer, ...]
    dtype: str | None
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    experts: Experts | None
    fp8: BlockFp8 | None
    norm_offset: float = 0.0
    prefix: str = "model."
    ignored: tuple[str, ...] = ()
    head: Head | None = None
    drafts: bool = False
    connections: HyperConnections | None = None
    ranks: int = 1

    @property
    def num_decoder_layers(self) -> int:
        """Without one that drafts."""
        return self.num_hidden_layers - self.drafts

    @property
    def vocab_rows(self) -> int:
        """Of embedding and head, in each rank; the last one's end with zeros where the tokens cannot be shared out."""
        return -(-self.vocab_size // self.ranks)

    @property
    def cache_specs(self) -> tuple[CacheSpec, ...]:
        """Of all layers, in their order."""
        return tuple(spec for layer in self.layers for spec in layer.caches)

    @property
    def caches_of_layers(self) -> tuple[tuple[CacheSpec, ...], ...]:
        return tuple(layer.caches for layer in self.layers)

    @property
    def latent_attention(self) -> LatentAttention | None:
        """That of the first layer which has it; all that have it are alike."""
        return next((layer.mixer for layer in self.layers if isinstance(layer.mixer, LatentAttention)), None)

    @property
    def gated_delta(self) -> GatedDelta | None:
        """That of the first layer which has it; all that have it are alike."""
        return next((layer.mixer for layer in self.layers if isinstance(layer.mixer, GatedDelta)), None)

    @property
    def compressed_attention(self) -> CompressedAttention | None:
        """That of the first layer with an indexer, else with compressed entries, else of the first which has it."""
        found = [layer.mixer for layer in self.layers if isinstance(layer.mixer, CompressedAttention)]
        return max(found, key=lambda mixer: (mixer.indexing is not None, mixer.ratio > 0), default=None)

    @property
    def block_multiple(self) -> int:
        """How many tokens a block of the cache must be a multiple of."""
        return block_multiple(self.cache_specs)

    @property
    def gates_attention(self) -> bool:
        """Whether the results of attention are gated, in all layers that have it."""
        return any(isinstance(layer.mixer, Attention) and layer.mixer.gated for layer in self.layers)

    @property
    def has_windows(self) -> bool:
        return any(isinstance(spec, SlidingWindow) for spec in self.cache_specs)

    @property
    def has_states(self) -> bool:
        """Whether some layer is a recurrence."""
        return any(isinstance(spec, State) for spec in self.cache_specs)

    def is_sparse(self, layer: int) -> bool:
        """Whether that layer is a mixture of experts."""
        return self.experts is not None and layer in self.experts.layers

    @property
    def context_length(self) -> int:
        """The longest context that the model was made for: max_position_embeddings, times what RoPE scaling adds.

        Llama 3's scaling is already counted in max_position_embeddings; yarn's and linear's are not (as vLLM reads
        them). https://github.com/vllm-project/vllm/blob/v0.11.0/vllm/config/model.py `_get_and_verify_max_len`.
        """
        scaling = self.rope_scaling or {}
        if scaling.get("rope_type") not in ("linear", "yarn", "dynamic"):
            return self.max_position_embeddings
        base = self.max_position_embeddings
        if scaling["rope_type"] == "yarn":
            base = scaling.get("original_max_position_embeddings", base)
        return max(int(base * scaling["factor"]), self.max_position_embeddings)
