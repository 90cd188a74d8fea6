"""Self-attention over the paged cache: projection, optional norm of q and k, rotary positions, cache, output."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from appliance.checkpoint.layout import KEY_SCALES, VALUE_SCALES
from appliance.checkpoint.model_config import Attention as AttentionMixer
from appliance.models.base import BuildContext
from appliance.models.batch import ForwardBatch, KeyValueCache, LayerCache
from appliance.models.layers.linear import Linear, rows_by_part
from appliance.models.layers.norm import NormWeight, RMSNorm
from kernels.fp8_linear.rounded import Rounded


class Attention:
    """Multi-head attention in which groups of query heads share a key and value head (MHA, GQA and MQA). Checkpoints
    have the rows of a gate behind those of each query head."""

    def __init__(self, context: BuildContext, prefix: str, cos_sin: Tensor, mixer: AttentionMixer) -> None:
        config = context.config
        self.num_heads, self.num_kv_heads, self.head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        query, key_value = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        self._gated, self._heads_size = mixer.gated, query + 2 * key_value
        parts = {"q_proj": 2 * query if mixer.gated else query, "k_proj": key_value, "v_proj": key_value}
        self.qkv = Linear(context, prefix, config.hidden_size, parts, config.attention_bias)
        self.out = Linear(context, prefix, query, {"o_proj": config.hidden_size}, config.attention_output_bias)
        self.q_norm: NormWeight | None = None
        self.k_norm: NormWeight | None = None
        if config.qk_norm == "all":
            self.q_norm = RMSNorm(context, f"{prefix}q_norm", query)
            self.k_norm = RMSNorm(context, f"{prefix}k_norm", key_value)
        elif config.qk_norm:
            self.q_norm = NormWeight(context, f"{prefix}q_norm", self.head_dim)
            self.k_norm = NormWeight(context, f"{prefix}k_norm", self.head_dim)
        self._eps, self._offset = config.rms_norm_eps, config.norm_offset
        self._scale = self.head_dim**-0.5
        self._prefix = prefix
        self._kv_scales = torch.ones(2)  # of keys and of values, by which a cache in FP8 is multiplied
        self._key_scale = self._value_scale = 1.0
        self._sliding_window = mixer.window
        self._cos_sin = cos_sin
        self._group = context.group
        shape = self.num_heads, self.head_dim, self.num_kv_heads
        window = () if mixer.window is None else (mixer.window,)
        self._rotary_cache = context.kernels.at("rotary_cache", *shape, config.rotary_dim).call
        self._paged_attention = context.kernels.at("paged_attention", *shape, *window).call

    @property
    def in_fp8(self) -> bool:
        return self.qkv.in_fp8

    def __call__(self, x: Tensor | Rounded, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """[T, hidden] -> [T, hidden]."""
        assert isinstance(cache, KeyValueCache)
        projected = self.qkv(x)
        # [T, q heads + k heads + v heads, head_dim]
        heads = projected[:, : self._heads_size].unflatten(-1, (-1, self.head_dim))
        query, key, value = heads.split((self.num_heads, self.num_kv_heads, self.num_kv_heads), dim=1)
        norms = None
        if isinstance(self.q_norm, RMSNorm) and isinstance(self.k_norm, RMSNorm):
            query, key = self._normed(self.q_norm, query), self._normed(self.k_norm, key)
        elif self.q_norm is not None and self.k_norm is not None:
            norms = (self.q_norm.weight, self.k_norm.weight)
        attention = batch.attention_of(self._sliding_window)
        scales = {}
        if cache.key.dtype == torch.float8_e4m3fn:
            scales = {"key_scale": self._key_scale, "value_scale": self._value_scale}
        self._rotary_cache(
            query, key, value, batch.positions, self._cos_sin, cache.key, cache.value, attention.slot_mapping,
            norms, self._eps, offset=self._offset, **scales,
        )  # fmt: skip
        mixed = self._paged_attention(
            query, cache.key, cache.value, attention, self._scale, self._sliding_window, **scales
        )
        mixed = mixed.flatten(1)
        if self._gated:
            mixed = mixed.mul_(torch.sigmoid(projected[:, self._heads_size :]))
        return self.out(mixed)

    def _normed(self, norm: RMSNorm, heads: Tensor) -> Tensor:
        """All heads of a token together, those of other ranks too."""
        rows = heads.flatten(1)
        rows = norm(rows) if self._group.count == 1 else norm.over_ranks(rows, self._group)
        return rows.view(heads.shape)

    def prepare(self) -> None:
        if self._gated:
            rows = torch.arange(len(self.qkv.weight.values), device=self._cos_sin.device)
            query, gate = rows_by_part(self.num_heads, (self.head_dim, self.head_dim), rows.device)
            self.qkv.reorder(torch.cat((query, rows[2 * len(query) :], gate)))
        self.qkv.prepare()
        self.out.prepare()
        self._key_scale, self._value_scale = self._kv_scales.tolist()
        for name, scale in (("k_scale", self._key_scale), ("v_scale", self._value_scale)):
            if not 0 < scale < math.inf:
                raise ValueError(
                    f"{self._prefix}{name} is {scale}; it must be a positive number. Export the model again, or remove "
                    "the scales of its cache."
                )

    def optional_destinations(self) -> Iterator[tuple[str, Tensor]]:
        for names, scale in zip((KEY_SCALES, VALUE_SCALES), self._kv_scales, strict=True):
            for name in names:
                yield self._prefix + name, scale

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.qkv.destinations()
        yield from self.out.destinations()
        if self.q_norm is not None and self.k_norm is not None:
            yield from self.q_norm.destinations()
            yield from self.k_norm.destinations()
