"""What the choice of backends depends on. Imports no torch, so that it can be used anywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

# Of the flags below with kernels of their own (`soft_cap`, `rotary_interleaved`, `latent_attention`), those that a
# family of `appliance/checkpoint` can set. A cast holds their kernels only if they are listed here: add a flag together
# with the first family that needs it.
FLAGS_IN_USE: Final[frozenset[str]] = frozenset({"latent_attention"})


def possible(flag: str) -> tuple[bool, ...]:
    """The values that `flag` of a context can have."""
    return (False, True) if flag in FLAGS_IN_USE else (False,)


@dataclass(frozen=True)
class CastSummary:
    """The contents of a cast: names of Triton variants (`Variant.name`) and FlashInfer modules, for one
    architecture."""

    arch: int  # 90 for sm_90
    variants: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Context:
    """The device, the model's shapes and how it is run.

    `capability` is None on the CPU. `cpu_features` are those of the processor's flags, named as in /proc/cpuinfo, that
    backends ask for; if None (unknown), no backend is refused for a missing flag. `libraries` maps each installed
    library to its version. `workers` is the number of processes that run one model together. `cast` is what a sealed
    engine may launch; None if it may compile.
    """

    device: str  # "cpu" or "cuda"
    capability: tuple[int, int] | None = None
    dtype: str = "float32"
    head_dim: int = 64
    num_heads: int = 1
    num_kv_heads: int = 1
    cuda_graphs: bool = False
    workers: int = 1
    libraries: Mapping[str, str] = field(default_factory=dict)
    cast: CastSummary | None = None
    engine: str = "native"  # or "vllm"
    left_to_engine: bool = False  # nothing is to be chosen: it has one backend of each kind on this device
    kv_cache_dtype: str = ""  # "" for that of dtype; "float8_e4m3fn" for a cache in 8 bits
    hidden_size: int = 0
    intermediate_size: int = 0
    dense_layers: bool = True  # some have a gated feed-forward layer rather than experts
    vocab_size: int = 0
    row: int = 0  # of one place: the elements of a row that it norms, activates or multiplies; 0: of the whole model
    grouped_row: int = 0  # the same of a place whose product is in groups
    rotary_dim: int = 0
    rotary_interleaved: bool = False
    norm_offset: float = 0.0  # added to the weights of norms
    qk_norm: str = ""  # "" none, "head" over each head, "all" over all heads of a token together
    sliding_window: bool = False
    attention_sinks: bool = False
    soft_cap: bool = False
    latent_attention: bool = False  # MLA; `head_dim` is then that of its cache, 576 in DeepSeek V3
    latent_query_rank: int = 0  # of the latent that queries are made from; 0: from the hidden state
    latent_rank: int = 0  # of a token's content in that cache, as the next is of its key for positions
    latent_rope_dim: int = 0
    latent_nope_dim: int = 0  # of a head's key that follows from the content
    latent_value_dim: int = 0  # of a head's value
    sparse_attention: bool = False  # of latent attention: only the tokens that an indexer chose
    dense_prefills: bool = False  # of sparse attention: prompts with nothing to choose from attend to all tokens
    index_heads: int = 0  # of the indexer's queries
    index_head_dim: int = 0
    index_top_k: int = 0  # tokens that it chooses
    index_interleaved: bool = False  # turns neighbouring pairs
    index_ratio: int = 1  # tokens of which a key is made
    index_mxfp4: bool = False  # keys and queries are in 4 bits rather than 8
    compressed_attention: bool = False  # DeepSeek V4's, over compressed entries beside a window
    grouped_products: bool = False  # its groups of heads are projected by weights that are not in FP8
    window: int = 0  # the tokens of that; `rotary_dim` is then of an entry's last numbers
    least_ratio: int = 0  # of compressed entries that are all attended to, the tokens that one is made of; 0: none such
    residual_streams: int = 1  # more than one: hyper-connections
    gated_delta_head_dim: int = 0  # of the keys of gated delta layers; 0: no such layers
    gated_delta_value_dim: int = 0
    gated_delta_key_heads: int = 0
    gated_delta_value_heads: int = 0
    conv_width: int = 0  # tokens that the convolution before such a layer sees
    activation: str = "silu"  # or "gelu", "gelu_tanh"
    fp8_blocks: tuple[int, int] | None = None  # rows and columns that share a weight scale, in a block-scaled FP8 model
    mxfp4_experts: bool = False  # which are kept in four bits
    quantization: str = ""  # the method, where weights are quantised in any other way
    float32_products: bool = False  # some have results in float32: of routers, and of what makes compressed entries
    num_experts: int = 0  # 0: no mixture of experts
    experts_per_token: int = 0
    moe_intermediate_size: int = 0
    shared_intermediate_size: int = 0  # of the experts that every token goes through; 0: none
    expert_scoring: str = "softmax"  # or "sigmoid", "sqrtsoftplus"
    hash_routing: bool = False  # in some layers a token's id says which experts it goes to
    num_expert_groups: int = 0  # 0 or 1: experts are chosen from all of them at once
    cpu_features: tuple[str, ...] | None = None

    @property
    def place(self) -> str:
        return "the CPU" if self.capability is None else "sm_{}{}".format(*self.capability)

    @property
    def arch(self) -> int:
        """As a cast names it: 90 for sm_90; 0 on the CPU."""
        return 0 if self.capability is None else self.capability[0] * 10 + self.capability[1]

    @property
    def widest_norm(self) -> int:
        """Elements of the longest row that is normalised."""
        if self.row:
            return self.row
        heads = self.num_heads * self.head_dim if self.qk_norm == "all" else 0
        return max(self.hidden_size, heads, self.latent_query_rank)

    @property
    def gated_width(self) -> int:
        """What divides the widths behind gated activations."""
        dense = self.intermediate_size if self.dense_layers else 0
        return self.row or math.gcd(dense, self.shared_intermediate_size)

    @property
    def latent_shape(self) -> tuple[int, int, int, int]:
        """As `mla_attention.LatentShape`."""
        return self.latent_rank, self.latent_nope_dim, self.latent_rope_dim, self.latent_value_dim

    @property
    def fp8_expert_size(self) -> int:
        """The intermediate size of experts in block-scaled FP8; 0 where there are none."""
        return self.moe_intermediate_size if self.fp8_experts else 0

    @property
    def fp8_experts(self) -> bool:
        return self.fp8_blocks is not None and not self.mxfp4_experts

    @property
    def mxfp4_expert_sizes(self) -> int:
        """What divides the widths of experts in MXFP4; 0 where there are none."""
        return math.gcd(self.hidden_size, self.moe_intermediate_size) if self.mxfp4_experts else 0

    @property
    def cache_dtype(self) -> str:
        return self.kv_cache_dtype or self.dtype
