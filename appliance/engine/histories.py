"""Token histories on the device: what each running request's penalties count, and what it may not sample yet.

A request's prompt is uploaded once, when it is first sampled after an admission; each step after that uploads only the
token that it sampled last.
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
    """A table on the device with a row for each slot that has needed one, which grows as histories do.

    It holds at most `max_num_seqs` rows, and as many columns as the longest history has had tokens.
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
        self._rows: dict[int, int] = {}  # of each slot
        self._histories: dict[int, _History] = {}  # by row

    def edits(self, requests: Sequence[Request]) -> Tensor | None:
        """[3, E] int32 on the device, as in `SamplingBatch.edits`, with `requests` as the rows of the batch; None where
        there is nothing to edit. Each request must be running, so that it has a slot."""
        spans, changes = [], []
        for place, request in enumerate(requests):
            forbids = len(request.output_token_ids) < request.sampling.min_tokens
            if not (request.has_penalties or forbids):
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
        """Enter `changes`, of each row [3, n]: column, token and count. Returns `spans` on the device, and how many
        tokens they hold: the row in the batch, the row in the table and the length of each history."""
        entered = np.concatenate([changed for _, changed in changes], axis=1)
        rows = np.repeat([row for row, _ in changes], [changed.shape[1] for _, changed in changes])
        places = rows.astype(np.int64) * self._table.shape[2] + entered[0]
        # In one copy; places have 64 bits, and come first so that they lie where such numbers may.
        uploaded = self._upload(np.concatenate((places.view(np.int32), entered[1:].ravel(), spans.ravel())))
        of_places, values, of_spans = uploaded.split([2 * places.size, 2 * places.size, spans.size])
        self._table.view(2, -1).index_copy_(1, of_places.view(torch.int64), values.view(2, -1))
        return of_spans.view(3, -1), int(spans[2].sum())

    def _gather(self, spans: Tensor, total: int) -> Tensor:
        rows, table_rows, lengths = spans
        edits = self._table.new_empty((3, total))
        edits[0] = torch.repeat_interleave(rows, lengths, output_size=total)
        # From where a token stands among the edits to where it stands in the table.
        shifts = table_rows.long() * self._table.shape[2] - (lengths.cumsum(0) - lengths)
        places = torch.repeat_interleave(shifts, lengths, output_size=total)
        places += torch.arange(total, device=places.device)
        torch.index_select(self._table.view(2, -1), 1, places, out=edits[1:])
        return edits

    def _upload(self, numbers: NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(numbers).to(self._table.device, non_blocking=True)


class _History:
    """The host's side of a row: which column each token has, and how often it stands in the output."""

    def __init__(self, request: Request, forbidden: Collection[int]) -> None:
        # Only the penalty for repetition takes the prompt into account.
        prompt = request.prompt_token_ids if request.sampling.repetition_penalty != 1 else ()
        self.state = (-1, False)  # the admission, and whether tokens are still forbidden
        self._columns = {token: column for column, token in enumerate(dict.fromkeys((*prompt, *forbidden)))}
        self._counts = [0] * len(self._columns)
        for token in forbidden:
            self._counts[self._columns[token]] = FORBIDDEN
        self._counts_output = request.has_penalties
        self._num_outputs = 0  # how many tokens of the output are counted
        self._uploaded = False

    def __len__(self) -> int:
        return len(self._columns)

    def changed(self, output_token_ids: list[int]) -> NDArray[np.int32]:
        """[3, n]: column, token and count of all that is new or has another count since the last call."""
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
