"""How each row of a batch is to be sampled, packed so that it reaches the device in two small copies."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Rows of `SamplingBatch.parameters`.
TEMPERATURE, UNIFORM, TOP_K, TOP_P, MIN_P, PRESENCE, FREQUENCY, REPETITION = range(8)
# In place of a count in `SamplingBatch.edits`: the token may not be sampled.
FORBIDDEN = -1


class Row(NamedTuple):
    """One row's wishes; the defaults take the most likely token."""

    temperature: float = 0.0  # 0: the most likely token, and nothing of the next four counts
    uniform: float = 0.0  # in [0, 1)
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    min_p: float = 0.0  # 0: off
    presence: float = 0.0  # subtracted once from each token of the output
    frequency: float = 0.0  # subtracted once for each time a token stands in the output
    repetition: float = 1.0  # divides positive, multiplies negative logits of tokens seen (Keskar et al., 2019)
    seen: NDArray[np.int32] | None = None  # [2, n]: tokens of prompt and output, how often each stands in the output
    forbidden: Collection[int] = ()  # token ids that may not be sampled
    biases: Mapping[int, float] = MappingProxyType({})  # token id -> what is added to its logit

    @property
    def truncates(self) -> bool:
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """S rows, in the order of the logits. What a backend plans by is on the host, the numbers are on the device.

    Token ids in `edits` lie in 0 .. V - 1, and each stands at most once in a row.
    """

    parameters: Tensor | None = None  # [8, S] float32; None where every row is greedy and nothing is edited
    samples: bool = False  # some row is not greedy
    truncates: bool = False  # some row has top-k, top-p or min-p
    edits: Tensor | None = None  # [3, E] int32: row, token id, how often it stands in the output (or FORBIDDEN)
    # [G, 1 + ceil(V / 32)] int32: a row, and a bit for each token, 0 where that row may not sample it; each row once.
    allowed: Tensor | None = None
    # [3, B] int32: row, token id, and the bits of a float32 that is added to its logit; each token once in a row.
    biases: Tensor | None = None
    logprobs: int | None = None  # alternatives to report for every row; None for no logprobs at all

    @property
    def changes_logits(self) -> bool:
        """Before anything is sampled from them."""
        return self.edits is not None or self.biases is not None or self.allowed is not None


class Sampled(NamedTuple):
    """Sampled tokens and, if asked for, their log probabilities under the model itself (before penalties, temperature
    and the rest)."""

    token_ids: Tensor  # [S] int64
    finite: Tensor  # [S] bool; False: the model's own logits hold NaN or have no finite maximum
    # [S] bool; False: every token is forbidden. Without both, the token means nothing, and is in range.
    samplable: Tensor
    logprobs: Tensor | None = None  # [S] float32
    top_logprobs: Tensor | None = None  # [S, n] float32, best first
    top_token_ids: Tensor | None = None  # [S, n] int64


def pack(
    rows: Sequence[Row],
    device: torch.device,
    logprobs: int | None = None,
    edits: Tensor | None = None,
    allowed: Tensor | None = None,
) -> SamplingBatch:
    """The batch of `rows`; nothing is copied where every row is greedy.

    `edits` [3, E] are on the device already, and stand for all that rows have seen and forbid: no row names any itself.
    `allowed` is on the device, too.
    """
    if edits is None:
        named = _edits(rows)
        edits = None if named is None else torch.from_numpy(named).to(device, non_blocking=True)
    samples = any(row.temperature > 0 for row in rows)
    biases = _biases(rows, device)
    if not samples and edits is None:
        return SamplingBatch(allowed=allowed, biases=biases, logprobs=logprobs)
    parameters = np.array([row[: REPETITION + 1] for row in rows], dtype=np.float32).T
    return SamplingBatch(
        parameters=torch.from_numpy(np.ascontiguousarray(parameters)).to(device, non_blocking=True),
        samples=samples,
        truncates=any(row.truncates for row in rows),
        edits=edits,
        allowed=allowed,
        biases=biases,
        logprobs=logprobs,
    )


def _biases(rows: Sequence[Row], device: torch.device) -> Tensor | None:
    counts = [len(row.biases) for row in rows]
    if not any(counts):
        return None
    biases = np.empty((3, sum(counts)), dtype=np.int32)
    biases[0] = np.repeat(np.arange(len(rows)), counts)
    biases[1] = [token for row in rows for token in row.biases]
    biases[2] = np.array([bias for row in rows for bias in row.biases.values()], dtype=np.float32).view(np.int32)
    found = torch.from_numpy(biases)
    # Pinned, since a copy from memory that is not would wait until the device has computed the step.
    return found.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else found


def _edits(rows: Sequence[Row]) -> NDArray[np.int32] | None:
    """What rows name themselves."""
    parts = {}
    for index, row in enumerate(rows):
        part = _edits_of(row) if row.forbidden else row.seen
        if part is not None and part.size:
            parts[index] = part
    if not parts:
        return None
    lengths = [part.shape[1] for part in parts.values()]
    edits = np.empty((3, sum(lengths)), dtype=np.int32)
    edits[0] = np.repeat(np.array(list(parts), dtype=np.int32), lengths)
    np.concatenate(list(parts.values()), axis=1, out=edits[1:])
    return edits


def _edits_of(row: Row) -> NDArray[np.int32]:
    """What a row has seen and what it may not sample; of the tokens that are both, that they may not be sampled."""
    forbidden = np.array([list(dict.fromkeys(row.forbidden))] * 2, dtype=np.int32)
    forbidden[1] = FORBIDDEN
    if row.seen is None:
        return forbidden
    both = np.flatnonzero(np.isin(row.seen[0], forbidden[0]))
    return np.concatenate([np.delete(row.seen, both, axis=1), forbidden], axis=1)
