"""Token histories on the device: the token counts behind each request's penalties, and its forbidden tokens.

A request's history is uploaded when it first samples after being admitted; later steps upload only what changed, which
is usually the last sampled token.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from appliance.engine.request import Request
from kernels.sampling.batch import FORBIDDEN


class TokenHistories:
    """A table on the device with one row for each slot that has needed a history.

    It grows to at most `max_num_seqs` rows, and to as many columns as the longest history has distinct tokens.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        max_num_seqs: int,
        max_model_len: int,
        device: torch.device,
    ) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._most = max_num_seqs, min(vocab_size, max_model_len)
        self._table = torch.empty((2, 0, 0), dtype=torch.int32, device=device)  # token ids, and their counts
        self._rows: dict[int, int] = {}  # by slot
        self._histories: dict[int, _History] = {}  # by row

    def edits(self, requests: Sequence[Request]) -> Tensor | None:
        """[3, E] int32 on the device, as in `SamplingBatch.edits`; None if there is nothing to edit. `requests` are the
        rows of the batch; nothing is edited for those that have ended meanwhile."""
        spans, changes = [], []
        for place, request in enumerate(requests):
            forbids = request.may_not_end
            if not (request.has_penalties or forbids) or not request.is_running:
                continue
            row = self._rows.setdefault(request.slot, len(self._rows))
            history = self._histories.get(row)
            if history is None or history.state != (request.admission, forbids):
                history = _History(request, self._forbidden(request) if forbids else ())
                history.state = request.admission, forbids
                self._histories[row] = history
            changed = history.changed(request.output_token_ids)
            if len(history):
                spans.append((place, row, len(history)))
                changes.append((row, changed))
        if not spans:
            return None
        self._grow(len(self._rows), max(length for _, _, length in spans))
        return self._gather(*self._write(changes, np.array(spans, dtype=np.int32).T))

    def _forbidden(self, request: Request) -> list[int]:
        ends = self._eos_token_ids.union(request.stop_token_ids)
        return [token for token in ends if 0 <= token < self._vocab_size]

    def _grow(self, rows: int, columns: int) -> None:
        _, had_rows, had_columns = self._table.shape
        rows = had_rows if rows <= had_rows else max(rows, min(2 * had_rows, self._most[0]))
        columns = had_columns if columns <= had_columns else max(columns, min(2 * had_columns, self._most[1]))
        if (rows, columns) != (had_rows, had_columns):
            table = self._table.new_zeros((2, rows, columns))
            table[:, :had_rows, :had_columns] = self._table
            self._table = table

    def _write(self, changes: Sequence[tuple[int, NDArray[np.int32]]], spans: NDArray[np.int32]) -> tuple[Tensor, int]:
        """Write `changes` to the table: for each row, [3, n] of column, token and count. Returns `spans` on the device
        (batch row, table row and length of each history), and the sum of the lengths."""
        entered = np.concatenate([changed for _, changed in changes], axis=1)
        rows = np.repeat([row for row, _ in changes], [changed.shape[1] for _, changed in changes])
        places = rows.astype(np.int64) * self._table.shape[2] + entered[0]
        # One copy for everything. The 64-bit places come first, so that they are aligned.
        uploaded = self._upload(np.concatenate((places.view(np.int32), entered[1:].ravel(), spans.ravel())))
        of_places, values, of_spans = uploaded.split([2 * places.size, 2 * places.size, spans.size])
        self._table.view(2, -1).index_copy_(1, of_places.view(torch.int64), values.view(2, -1))
        return of_spans.view(3, -1), int(spans[2].sum())

    def _gather(self, spans: Tensor, total: int) -> Tensor:
        rows, table_rows, lengths = spans
        edits = self._table.new_empty((3, total))
        edits[0] = torch.repeat_interleave(rows, lengths, output_size=total)
        # The offset from a token's index in the edits to its index in the table.
        shifts = table_rows.long() * self._table.shape[2] - (lengths.cumsum(0) - lengths)
        places = torch.repeat_interleave(shifts, lengths, output_size=total)
        places += torch.arange(total, device=places.device)
        torch.index_select(self._table.view(2, -1), 1, places, out=edits[1:])
        return edits

    def _upload(self, numbers: NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(numbers).to(self._table.device, non_blocking=True)


class _History:
    """The host's copy of a row: the column of each token, and its count in the output."""

    def __init__(self, request: Request, forbidden: Collection[int]) -> None:
        # Only the repetition penalty considers the prompt.
        prompt = request.prompt_token_ids if request.sampling.repetition_penalty != 1 else ()
        self.state = (-1, False)  # the admission, and whether there are forbidden tokens
        self._columns = {token: column for column, token in enumerate(dict.fromkeys((*prompt, *forbidden)))}
        self._counts = [0] * len(self._columns)
        for token in forbidden:
            self._counts[self._columns[token]] = FORBIDDEN
        self._counts_output = request.has_penalties
        self._num_outputs = 0  # output tokens counted so far
        self._uploaded = False

    def __len__(self) -> int:
        return len(self._columns)

    def changed(self, output_token_ids: list[int]) -> NDArray[np.int32]:
        """[3, n] of column, token and count: all entries that are new or changed since the last call."""
        columns = {}
        for token in output_token_ids[self._num_outputs :] if self._counts_output else ():
            column = self._columns.setdefault(token, len(self._columns))
            if column == len(self._counts):
                self._counts.append(0)
            self._counts[column] += 1
            columns[column] = token
        self._num_outputs = len(output_token_ids)
        if not self._uploaded:
            self._uploaded = True
            return np.array((range(len(self)), list(self._columns), self._counts), dtype=np.int32)
        counts = [self._counts[column] for column in columns]
        return np.array((list(columns), list(columns.values()), counts), dtype=np.int32)
