"""How each row of a batch is to be sampled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor


class Penalties(NamedTuple):
    """What pushes a row away from tokens it has seen. `prompt` and `output` are its tokens so far [n], int64."""

    row: int
    prompt: Tensor
    output: Tensor
    presence: float  # subtracted once from each token of the output
    frequency: float  # subtracted once for each time a token stands in the output
    repetition: (
        float  # divides positive and multiplies negative logits of tokens in prompt and output (Keskar et al., 2019)
    )


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Rows that are greedy stand in neither of the two lists of rows; all others in one of them.

    The tensors have one entry for each row of the list they belong to. Splitting the rows by what they need keeps a
    row's result independent of what its neighbours ask for.
    """

    plain_rows: list[int] = field(default_factory=list)  # temperature only
    plain_temperature: Tensor | None = None  # [P] float32
    plain_uniform: Tensor | None = None  # [P] float32 in [0, 1)
    truncated_rows: list[int] = field(default_factory=list)  # top-k, top-p or min-p as well
    truncated_temperature: Tensor | None = None  # [R] float32
    truncated_uniform: Tensor | None = None  # [R] float32 in [0, 1)
    top_k: Tensor | None = None  # [R] int64, the vocabulary's size where off
    top_p: Tensor | None = None  # [R] float32, 1 where off
    min_p: Tensor | None = None  # [R] float32, 0 where off
    penalties: list[Penalties] = field(default_factory=list)
    forbidden: list[tuple[int, list[int]]] = field(default_factory=list)  # (row, token ids that may not be drawn)
    logprobs: int | None = None  # alternatives to report for every row; None for no logprobs at all


class Sampled(NamedTuple):
    """Drawn tokens and, if asked for, their log probabilities under the model itself (before temperature and the
    rest)."""

    token_ids: Tensor  # [S] int64
    finite: Tensor  # [S] bool; False: the row's logits hold NaN or have no finite maximum, and its token means nothing
    logprobs: Tensor | None = None  # [S] float32
    top_logprobs: Tensor | None = None  # [S, n] float32, best first
    top_token_ids: Tensor | None = None  # [S, n] int64
