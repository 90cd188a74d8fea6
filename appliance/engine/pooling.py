"""Embeddings of prompts, from the hidden states with which the model reads them."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from appliance.engine.request import Request
from appliance.engine.scheduler import Scheduled


class Pooled(NamedTuple):
    """What one step adds to the embedding of one prompt, of which it computes the tokens from the place `start` on."""

    request: Request
    start: int
    part: Tensor  # [H] float32


def pool_prompts(step: Sequence[Scheduled], hidden: Tensor) -> list[Pooled]:
    """Of the prompts that want it. `hidden` [T, H] has the step's tokens in order."""
    pooled: list[Pooled] = []
    end = 0
    for item in step:
        begin, end = end, end + item.num_tokens
        if item.request.pooling == "mean":
            part = hidden[begin:end].float().sum(dim=0) / len(item.request.prompt_token_ids)
            pooled.append(Pooled(item.request, item.start, part))
        elif item.request.pooling == "last" and item.samples:
            pooled.append(Pooled(item.request, 0, hidden[end - 1].float()))
    return pooled


def keep_pooled(pooled: Pooled) -> None:
    """A prompt that is computed again, after a preemption, begins anew."""
    request, part = pooled.request, array("f", pooled.part.tolist())
    request.pooled = array("f", map(sum, zip(request.pooled, part, strict=True))) if pooled.start else part


def embedding(request: Request) -> bytes:
    """In the byte order of the protocol."""
    values = request.pooled[:]
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()
