"""Runs one scheduled step on the device: its tokens are laid out, the model is called, and the next ones sampled; by
launching each kernel, or by replaying a CUDA graph."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from appliance.checkpoint.memory.graph_shapes import GraphShape
from appliance.engine.cache import Caches
from appliance.engine.graphs import Computed, StepGraphs, StepSize
from appliance.engine.histories import TokenHistories
from appliance.engine.inputs import Inputs, StepInputs
from appliance.engine.pooling import Pooled, pool_prompts
from appliance.engine.prompt_scores import PromptScores, score_prompts
from appliance.engine.sampling import sampling_batch
from appliance.engine.scheduler import Scheduled
from appliance.engine.speculation.drafts import accepted_run
from appliance.models.base import Model
from appliance.models.batch import Carried
from appliance.models.collectives import ALONE, Group
from appliance.protocol import StepKind
from kernels.binding import Kernels
from kernels.sampling.batch import Sampled, SamplingBatch


class StepResult(NamedTuple):
    """What a step computed. `sampled` are the items of the step that sample, each with as many of what was sampled as
    its request goes on with, and which of the D rows the first of these is: a token is None if every one is forbidden.
    Ignore those of a request that is not `finite`."""

    finite: list[bool]  # of each item of the step: its last known token is computed from numbers, and so are its logits
    sampled: list[tuple[Scheduled, list[int | None], int]]
    predicted: list[int]  # what the model's head expects behind each of the D rows; empty where there is no head
    prompt_scores: Sequence[PromptScores]
    pooled: Sequence[Pooled]
    logprobs: Tensor | None = None  # [D] float32
    top_logprobs: Tensor | None = None  # [D, n] float32, best first
    top_token_ids: Tensor | None = None  # [D, n] int64


class ForHead(NamedTuple):
    """The step as the model was called with, what it leaves to its head [T, ...], and the shape of its graph."""

    inputs: Inputs
    hidden: Tensor
    shape: GraphShape | None = None


class ComputedStep(NamedTuple):
    """A step that the device computes, up to the logits. More rows than the step's may follow. Drafts are sequences of
    their own (`engine/inputs.py`)."""

    step: Sequence[Scheduled]
    finite: Tensor  # [S] bool
    logits: Tensor | None = None  # [D, V] of those that sample, float32 or as a graph has them; None if none does
    slots: Tensor | None = None  # [D] int64
    greedy: Sampled | None = None  # sampled by its graph; all that plain requests need
    prompt_scores: Sequence[PromptScores] = ()
    pooled: Sequence[Pooled] = ()
    for_head: ForHead | None = None  # where the model has a head for drafts


class LaunchedStep:
    """A step that the device computes. Its result is on the way to the host, so that later steps may overwrite it."""

    def __init__(
        self,
        step: Sequence[Scheduled],
        finite: Tensor,
        sampled: Sampled | None,
        prompt_scores: Sequence[PromptScores] = (),
        pooled: Sequence[Pooled] = (),
        predicted: Tensor | None = None,
        group: Group = ALONE,
    ) -> None:
        """`finite` and `sampled` may have more rows than the step; `predicted` [D] int64 is of a head. All ranks go on
        with what the first one sampled, and predicted."""
        count, sampling = _num_sequences(step), sum(item.num_sampled for item in step)
        self.step = step
        self.has_drafts = any(item.drafts for item in step)
        parts = [finite[:count]]
        if sampled is not None:
            parts += [found[:sampling] for found in (sampled.finite, sampled.samplable, sampled.token_ids)]
            parts += [] if predicted is None else [predicted]
        self._numbers = _on_its_way(group.follow(torch.cat(parts)))
        self._logprobs = [_on_its_way(found) for found in sampled[3:] if found is not None] if sampled else []
        self._prompt_scores = [
            PromptScores(request, start, *map(_on_its_way, found)) for request, start, *found in prompt_scores
        ]
        self._pooled = [Pooled(request, start, _on_its_way(part)) for request, start, part in pooled]
        self._progress = group.progress
        self._copied = torch.cuda.Event() if finite.is_cuda else None
        if self._copied is not None:
            self._copied.record()

    def result(self) -> StepResult:
        """Wait for it."""
        if self._copied is not None:
            self._progress.wait()
            self._copied.synchronize()
            self._progress.go_on()
        rows = sum(item.num_sampled for item in self.step)
        of_hidden, of_logits, samplable, token_ids, predicted = _split(
            self._numbers.tolist(), _num_sequences(self.step), *[rows] * 4
        )
        tokens = [token if may else None for token, may in zip(token_ids, samplable, strict=True)]
        finite, sampled, place, row = [], [], 0, 0
        for item in self.step:
            sound = [bool(each) for each in of_hidden[place : place + 1 + len(item.drafts)]]
            if item.samples:
                sound = [*map(operator.and_, sound, map(bool, of_logits[row:]))]
                run = accepted_run(item.drafts, tokens[row:], sound)
                sampled.append((item, tokens[row : row + run], row))
            finite.append(sound[0])
            place, row = place + 1 + len(item.drafts), row + item.num_sampled
        return StepResult(finite, sampled, predicted, self._prompt_scores, self._pooled, *self._logprobs)


def _on_its_way(found: Tensor) -> Tensor:
    """A copy on the host, which is complete once the stream has come so far."""
    if not found.is_cuda:
        return found
    return torch.empty(found.shape, dtype=found.dtype, pin_memory=True).copy_(found, non_blocking=True)


class Runner:
    """Holds the model, its cache, and its CUDA graphs where it has any."""

    def __init__(
        self,
        model: Model,
        caches: Caches,
        kernels: Kernels,
        inputs: StepInputs,
        histories: TokenHistories,
        *,
        max_num_seqs: int,
        device: torch.device,
        log: Callable[[str], None],
        group: Group = ALONE,
    ) -> None:
        self._log, self._group = log, group
        self._model = model
        self._caches = caches
        self._kernels = kernels
        self._inputs = inputs
        self._histories = histories
        self._device = device
        self._last_sampled = torch.zeros(max_num_seqs + 1, dtype=torch.int64, device=device)  # by slot
        self._graphs: StepGraphs | None = None
        self._logits = torch.empty(0, device=device)  # of steps by graphs
        # Of these steps, what their heads are given: hidden states, and the token behind each.
        self._hidden, self._following = torch.empty(0, device=device), torch.empty(0, dtype=torch.int64, device=device)
        self.steps: Counter[StepKind] = Counter()

    def use_graphs(self, shapes: Sequence[GraphShape], vocab_size: int, dtype: torch.dtype) -> None:
        """Compute by graphs of `shapes`, as soon as they are captured, for logits of the model's `dtype`."""
        most = max(shape.num_rows for shape in shapes)
        self._logits = torch.empty(most, vocab_size, dtype=dtype, device=self._device)
        predict = None
        if (drafter := self._model.drafter) is not None:
            tokens = max(shape.num_tokens for shape in shapes)
            self._hidden, self._following = drafter.room(tokens), self._following.new_zeros(tokens)
            predict = self._predict_padded
        self._graphs = StepGraphs(shapes, self._compute_padded, self._device, predict)

    @torch.inference_mode()
    def capture_next(self) -> bool:
        """Capture one graph that is missing; False if none is, or no memory is left for it."""
        if self._graphs is None or not (missing := self._graphs.choice.missing):
            return False
        return self._captured(missing[0])

    @torch.inference_mode()
    def compute(self, step: Sequence[Scheduled]) -> ComputedStep:
        """Launch the model. At most one earlier step may be without its result."""
        kind, shape = self._step_kind(step)
        if shape is not None and not self._captured(shape):
            kind, shape = StepKind.NOT_CAPTURED, None
        self.steps[kind] += 1
        for item in step:
            if item.loads is not None:
                self._caches.load_state(item.loads, item.request.slot)
        return self._compute_eagerly(step) if shape is None else self._replay(step, shape)

    @torch.inference_mode()
    def sample(self, computed: ComputedStep) -> LaunchedStep:
        """Sample for those of the step's requests of which all tokens are computed then. Where one `needs_its_tokens`,
        the result of the step before must have been read; a request that ended with it samples all the same. Then
        states are copied, to which a head has added by now."""
        launched = self._sample(computed)
        for item in computed.step:
            # The rows of one that has ended since are no longer its own.
            if item.saves is not None and item.request.is_running:
                self._caches.save_state(item.request.slot, item.saves)
        return launched

    def _sample(self, computed: ComputedStep) -> LaunchedStep:
        step, finite, logits, slots, greedy, scores, pooled, _ = computed
        rows = [(item.request, place) for item in step for place in range(item.num_sampled)]
        requests, ahead = [request for request, _ in rows], [place for _, place in rows]
        if logits is None or slots is None:
            self._predict(computed)
            return LaunchedStep(step, finite, None, scores, pooled, group=self._group)
        if greedy is not None and all(request.is_plain for request in requests):
            return LaunchedStep(step, finite, greedy, predicted=self._predict(computed, greedy), group=self._group)
        batch = sampling_batch(requests, self._histories, self._device, ahead)
        sampled = self._kernels.sampling(logits.float(), batch)
        self._keep(slots, sampled)
        return LaunchedStep(step, finite, sampled, scores, pooled, self._predict(computed, sampled), self._group)

    def _predict(self, computed: ComputedStep, sampled: Sampled | None = None) -> Tensor | None:
        """[D] int64, what the model's head expects behind each token that was sampled; None without a head, or without
        such tokens. It reads all tokens of the step, each with the one behind it: what it keeps of a rejected draft is
        overwritten when the token in its place is computed."""
        drafter = self._model.drafter
        if drafter is None or computed.for_head is None:
            return None
        inputs, hidden, shape = computed.for_head
        following = inputs.batch.token_ids.roll(-1)
        if behind := _behind_chunks(computed.step, inputs.batch.attention.num_decodes):
            rows, token_ids = torch.tensor(behind).T.contiguous().to(self._device, non_blocking=True)
            following.index_copy_(0, rows, token_ids)
        sampling = inputs.sampling[: sum(item.num_sampled for item in computed.step)]
        places = inputs.last_rows[sampling]
        if sampled is not None:
            following.index_copy_(0, places, self._group.follow(sampled.token_ids[: len(places)]))
        if shape is not None and self._graphs is not None:
            self._following[: len(following)].copy_(following)
            found = self._graphs.replay_head(shape)
            return None if sampled is None else found[sampling]
        found = self._look_ahead(inputs, hidden, following)
        if computed.logits is None:
            return None
        # In place of the model's own, of which all that is wanted was read.
        logits = self._model.compute_logits(found[places], out=computed.logits)
        predicted: Tensor = self._kernels.sampling(logits, SamplingBatch()).token_ids
        return predicted

    def _look_ahead(self, inputs: Inputs, hidden: Tensor, following: Tensor) -> Tensor:
        """What the head makes of every token of a step and the one behind it."""
        assert self._model.drafter is not None
        batch = replace(inputs.batch, token_ids=following, carried=Carried())
        return self._model.drafter.forward(batch, hidden, self._caches.layers[-1])

    def _predict_padded(self, shape: GraphShape) -> Tensor:
        """What a head's graph of `shape` holds, behind that of the model."""
        inputs = self._inputs.padded(shape)
        found = self._look_ahead(inputs, self._hidden[: shape.num_tokens], self._following[: shape.num_tokens])
        rows = found[inputs.last_rows] if shape.prefills else found
        logits = self._model.compute_logits(rows, out=self._logits[: shape.num_rows])
        predicted: Tensor = self._kernels.sampling(logits, SamplingBatch()).token_ids
        return predicted

    def _step_kind(self, step: Sequence[Scheduled]) -> tuple[StepKind, GraphShape | None]:
        if self._graphs is None:
            return StepKind.EAGER, None
        if any(map(_reads_whole_prompt, step)):
            return StepKind.WHOLE_PROMPT, None
        choice, size = self._graphs.choice, _size(step)
        if size.prefills and not choice.holds_prefills:
            return StepKind.PREFILL, None
        shape = choice.choose(size)
        if shape is None:
            return StepKind.NOT_CAPTURED if choice.has_room(size) else StepKind.TOO_LARGE, None
        return StepKind.MIXED_GRAPH if size.prefills else StepKind.GRAPH, shape

    def _captured(self, shape: GraphShape) -> bool:
        """Capture the graph of `shape` if it is missing: with padding alone, since computing a real step twice would
        take its own samples for those of the step before. Where no memory is left, in whichever rank, do without all
        that are missing."""
        assert self._graphs is not None
        if not self._graphs.choice.is_missing(shape):
            return True
        with self._group.progress.preparing():
            return self._capture(self._graphs, shape)

    def _capture(self, graphs: StepGraphs, shape: GraphShape) -> bool:
        self._inputs.lay_out_padded((), shape)
        try:
            graphs.warm_up(shape)
        except torch.OutOfMemoryError:
            if self._group.count > 1:
                raise  # the other ranks wait for this one in the middle of the model
            captured = False
        else:
            captured = self._everywhere(graphs.capture(shape))
        if captured:
            return True
        graphs.drop(shape)
        self._log("No memory is left for further CUDA graphs; batches of other sizes run without.")
        return False

    def _everywhere(self, flag: bool) -> bool:
        """Whether it is set in every rank."""
        return bool(self._group.all(torch.tensor([flag], device=self._device)).item())

    def _replay(self, step: Sequence[Scheduled], shape: GraphShape) -> ComputedStep:
        assert self._graphs is not None
        self._inputs.lay_out_padded(step, shape)
        finite, logits, greedy = self._graphs.replay(shape)
        count, inputs = _num_sequences(step), self._inputs.padded(shape)
        for_head = None if self._model.drafter is None else ForHead(inputs, self._hidden, shape)
        sampling = sum(item.num_sampled for item in step)
        if sampling == count:
            return ComputedStep(step, finite, logits[:count], inputs.slots[:count], greedy, for_head=for_head)
        if not sampling:
            return ComputedStep(step, finite, for_head=for_head)
        places = inputs.sampling[:sampling]
        greedy = Sampled(greedy.token_ids[places], greedy.finite[places], greedy.samplable[places])
        return ComputedStep(step, finite, logits[places], inputs.slots[places], greedy, for_head=for_head)

    def _compute_padded(self, shape: GraphShape) -> Computed:
        """What a graph of `shape` holds. It samples for every sequence: what is kept of those of a prompt that goes on
        is overwritten before it is read."""
        inputs = self._inputs.padded(shape)
        self._enter_last_sampled(inputs)
        hidden = self._model.forward(inputs.batch, self._caches.layers)
        if self._model.drafter is not None:
            self._hidden[: shape.num_tokens].copy_(_for_head(inputs, hidden))
        rows = hidden[inputs.last_rows] if shape.prefills else hidden
        logits = self._model.compute_logits(rows, out=self._logits[: shape.num_rows])
        greedy = self._kernels.sampling(logits, SamplingBatch())
        self._keep(inputs.slots, greedy)
        return Computed(_finite(rows), logits, greedy)

    def _compute_eagerly(self, step: Sequence[Scheduled]) -> ComputedStep:
        inputs = self._inputs.lay_out(step)
        if any(item.start >= item.request.num_tokens for item in step):
            self._enter_last_sampled(inputs)
        hidden = self._model.forward(inputs.batch, self._caches.layers)
        # As many rows at a time as the memory plan has logits for.
        scores = score_prompts(step, hidden, self._model.compute_logits, len(self._last_sampled) - 1)
        pooled = pool_prompts(step, hidden)
        rows = hidden[inputs.last_rows]
        finite = _finite(rows)
        for_head = None if self._model.drafter is None else ForHead(inputs, _for_head(inputs, hidden))
        sampling = sum(item.num_sampled for item in step)
        if not sampling:
            return ComputedStep(step, finite, prompt_scores=scores, pooled=pooled, for_head=for_head)
        every = sampling == len(rows)
        logits = self._model.compute_logits(rows if every else rows[inputs.sampling])
        slots = inputs.slots if every else inputs.slots[inputs.sampling]
        return ComputedStep(step, finite, logits, slots, prompt_scores=scores, pooled=pooled, for_head=for_head)

    def _enter_last_sampled(self, inputs: Inputs) -> None:
        """Put the tokens in place that only the device knows; they are among the first rows, which decode."""
        decodes = inputs.batch.attention.num_decodes
        token_ids, slots = inputs.batch.token_ids[:decodes], inputs.batch.slots[:decodes]
        token_ids.copy_(torch.where(token_ids < 0, self._last_sampled[slots], token_ids))

    def _keep(self, slots: Tensor, sampled: Sampled) -> None:
        self._last_sampled.index_copy_(0, slots, self._group.follow(sampled.token_ids))


def _for_head(inputs: Inputs, hidden: Tensor) -> Tensor:
    """What the model has left to its head."""
    left = inputs.batch.carried.for_head
    return hidden if left is None else left


def _finite(rows: Tensor) -> Tensor:
    """Whether each last hidden state is finite. The last token attends to all others, so that a NaN in any of them
    shows here."""
    return rows.isfinite().all(dim=-1)


def _behind_chunks(step: Sequence[Scheduled], num_decodes: int) -> list[tuple[int, int]]:
    """Of each chunk of a prompt that ends before its prompt does: its last row, and the token behind it, if that is
    known. The first `num_decodes` rows are for decodes."""
    found, end = [], 0
    for item in step:
        end = (end if item.is_decode else max(end, num_decodes)) + item.num_tokens
        if not item.samples:
            found += [(end - 1, token) for token in item.request.tokens(item.context_len, item.context_len + 1)]
    return found


def _size(step: Sequence[Scheduled]) -> StepSize:
    prefills = [item.num_tokens for item in step if not item.is_decode]
    decodes = _num_sequences(step) - len(prefills)
    return StepSize(decodes, max(item.context_len for item in step), sum(prefills), len(prefills))


def _reads_whole_prompt(item: Scheduled) -> bool:
    """Whether hidden states of other tokens than the last are wanted."""
    request = item.request
    return bool(request.pooling) or (request.wants_prompt_scores and item.start + 1 < len(request.prompt_token_ids))


def _num_sequences(step: Sequence[Scheduled]) -> int:
    """As which it is laid out."""
    return sum(1 + len(item.drafts) for item in step)


def _split(values: list[int], *counts: int) -> Iterator[list[int]]:
    start = 0
    for count in counts:
        yield values[start : start + count]
        start += count
