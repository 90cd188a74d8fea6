"""Self-attention over the paged cache: projection, optional norm of q and k, rotary positions, cache, output."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from appliance.checkpoint.layout import KEY_SCALES, VALUE_SCALES
from appliance.models.base import BuildContext
from appliance.models.batch import ForwardBatch, LayerCache
from appliance.models.layers.linear import Linear
from appliance.models.layers.norm import RMSNorm


class Attention:
    """Multi-head attention in which groups of query heads share a key and value head (MHA, GQA and MQA)."""

    def __init__(self, context: BuildContext, prefix: str, cos_sin: Tensor, sliding_window: int | None) -> None:
        config = context.config
        self.num_heads, self.num_kv_heads, self.head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        query, key_value = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        parts = {"q_proj": query, "k_proj": key_value, "v_proj": key_value}
        self.qkv = Linear(context, prefix, config.hidden_size, parts, config.attention_bias)
        self.out = Linear(context, prefix, query, {"o_proj": config.hidden_size}, config.attention_output_bias)
        self.q_norm = self.k_norm = None
        self._norm_together = config.qk_norm == "all"
        if config.qk_norm:
            sizes = (query, key_value) if self._norm_together else (self.head_dim, self.head_dim)
            self.q_norm = RMSNorm(context, f"{prefix}q_norm", sizes[0])
            self.k_norm = RMSNorm(context, f"{prefix}k_norm", sizes[1])
        self._eps = config.rms_norm_eps
        self._scale = self.head_dim**-0.5
        self._prefix = prefix
        self._kv_scales = torch.ones(2)  # of keys and of values, by which a cache in FP8 is multiplied
        self._key_scale = self._value_scale = 1.0
        self._sliding_window = sliding_window
        self._cos_sin = cos_sin
        self._kernels = context.kernels

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """[T, hidden] -> [T, hidden]."""
        heads = self.qkv(x).unflatten(-1, (-1, self.head_dim))  # [T, q heads + k heads + v heads, head_dim]
        query, key, value = heads.split((self.num_heads, self.num_kv_heads, self.num_kv_heads), dim=1)
        norms = None
        if self.q_norm is not None and self.k_norm is not None:
            if self._norm_together:
                query, key = (
                    norm(x.flatten(1)).view(x.shape) for norm, x in ((self.q_norm, query), (self.k_norm, key))
                )
            else:
                norms = (self.q_norm.weight, self.k_norm.weight)
        scales = {}
        if cache.key.dtype == torch.float8_e4m3fn:
            scales = {"key_scale": self._key_scale, "value_scale": self._value_scale}
        self._kernels.rotary_cache(
            query, key, value, batch.positions, self._cos_sin, cache.key, cache.value, batch.attention.slot_mapping,
            norms, self._eps, **scales,
        )  # fmt: skip
        mixed = self._kernels.paged_attention(
            query, cache.key, cache.value, batch.attention, self._scale, self._sliding_window, **scales
        )
        return self.out(mixed.flatten(1))

    def prepare(self) -> None:
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
