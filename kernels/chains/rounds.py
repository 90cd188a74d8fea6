"""Which sequences of a batch are a chain, and the chains a token at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor


class Chains(NamedTuple):
    """Of each sequence that decodes: how many tokens its chain has, itself included, where it is the known token, and 0
    where it is a draft; and how many drafts were accepted of the chain before, which are the tokens before it."""

    lens: Tensor  # [S] int32
    accepted: Tensor  # [S] int32


class Round(NamedTuple):
    """One token each of some chains. `chosen` [N] are these, in the order of `Rounds.first`, and `tokens` [N] either
    their tokens in the batch or where they are kept."""

    chosen: Tensor
    tokens: Tensor


class Rounds:
    """The chains of a batch, a token at a time: what backends in torch go by. `first` [C] are their known tokens."""

    def __init__(self, chains: Chains, seq_lens: Tensor, num_decodes: int, num_places: int) -> None:
        lens = chains.lens[:num_decodes]
        self.first = lens.nonzero()[:, 0]
        self._lens, self._accepted = lens[self.first], chains.accepted[self.first]
        self._positions, self._places = seq_lens[self.first].long() - 1, num_places

    def replayed(self) -> Iterator[Round]:
        """The drafts that were accepted, the earliest first."""
        for number in range(int(self._accepted.max())):
            chosen = (self._accepted > number).nonzero()[:, 0]
            positions = self._positions[chosen] - self._accepted[chosen] + number
            yield Round(chosen, positions % self._places)

    def drafts(self) -> Iterator[tuple[Round, Tensor]]:
        """Each with where it is to be kept [N]."""
        for number in range(1, int(self._lens.max())):
            chosen = (self._lens > number).nonzero()[:, 0]
            kept_at = (self._positions[chosen] + number) % self._places
            yield Round(chosen, self.first[chosen] + number), kept_at
