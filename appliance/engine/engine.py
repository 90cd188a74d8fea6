"""The engine without its process: a scheduler, a runner, and what one step makes of them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from appliance.checkpoint.cache_specs import pool_windows
from appliance.checkpoint.config import read_config
from appliance.checkpoint.drafting import with_drafts, with_head
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.fused_experts import one_by_one
from appliance.checkpoint.grammar import GrammarError
from appliance.checkpoint.index_keys import with_index_keys
from appliance.checkpoint.memory.graph_shapes import GraphShape, graph_shapes, most_rows
from appliance.checkpoint.safetensors import read_index
from appliance.checkpoint.sharding import sharded, shards
from appliance.core_protocol import (
    CorePhase,
    EngineConfig,
    FinishReason,
    Loaded,
    PromptLogprobs,
    Submit,
    TokenLogprob,
    TokenOutput,
)
from appliance.engine.block_pool import BlockPool
from appliance.engine.cache import Caches, torch_dtype
from appliance.engine.cache_manager import CacheManager
from appliance.engine.grammar import Grammars
from appliance.engine.histories import TokenHistories
from appliance.engine.inputs import StepInputs
from appliance.engine.logprobs import keep_scores, token_logprobs
from appliance.engine.pooling import embedding, keep_pooled
from appliance.engine.request import Request, sampling_refusal
from appliance.engine.runner import LaunchedStep, Runner
from appliance.engine.scheduler import Limits, Scheduled, Scheduler
from appliance.engine.snapshots import Snapshots
from appliance.engine.speculation.drafts import drafts_of
from appliance.engine.weights import load_weights, unused_tensors
from appliance.models.base import BuildContext
from appliance.models.collectives import ALONE, Group
from appliance.models.registry import build
from appliance.protocol import Phase, Progress, StepKind
from kernels.binding import bind

if TYPE_CHECKING:
    from llguidance import LLMatcher

# The others are captured while the engine is idle.
GRAPHS_BEFORE_READY = 3

NOT_FINITE = (
    "the model's output is not a number (NaN or infinity); the weights are damaged, or the dtype is too narrow for "
    "this model: try dtype bfloat16 or float32"
)
NOTHING_TO_SAMPLE = "no token can be sampled: min_tokens, or its grammar, forbids every token that the model allows"


class Engine:
    """Loads a model and generates with it, one step at a time. Not thread-safe: one loop owns it."""

    def __init__(
        self,
        config: EngineConfig,
        report: Callable[[CorePhase], None],
        log: Callable[[str], None],
        group: Group = ALONE,
    ) -> None:
        """Load as `config` says, which is taken as already checked; `report` hears each phase, `log` a line for people.
        Every rank of a `group` has an engine, and all are given the same calls in the same order.

        Raises:
            CheckpointError, ValueError: the folder is not what preflight saw.
            BackendMissingError: a backend that was chosen is not there.
            torch.OutOfMemoryError: the device has less memory than the plan counted on.
        """
        folder = Path(config.model_folder)
        device = torch.device(config.device)
        dtype = torch_dtype(config.dtype)
        whole = with_index_keys(read_config(folder), config.index_key_dtype)
        if config.drafts == "mtp":
            whole = with_head(whole)
        whole = with_drafts(whole, config.num_speculative_tokens)
        model_config = sharded(whole, group.count)
        index = one_by_one(read_index(folder), whole)

        log("backends: " + ", ".join(f"{at} {name}" for at, name in (config.backends | _elsewhere(config)).items()))
        report(CorePhase(phase=Phase.WEIGHTS, progress=Progress(total=index.total_bytes, unit="bytes")))
        kernels = bind(config.backends, places=config.places)
        model = build(BuildContext(model_config, kernels, device, dtype, config.max_model_len, config.keep_fp8, group))
        optional = {name: place for name, place in model.optional_destinations().items() if name in index.tensors}
        destinations = {**model.destinations(), **optional}
        started = time.perf_counter()
        weight_bytes = load_weights(
            index,
            destinations,
            lambda done, total: report(
                CorePhase(phase=Phase.WEIGHTS, progress=Progress(done=done, total=total, unit="bytes"))
            ),
            shards(whole, group.rank, group.count),
        )
        seconds = time.perf_counter() - started
        log(f"{weight_bytes / 1e9:.2f} GB of weights in {seconds:.2f} s, {weight_bytes / seconds / 1e9:.1f} GB/s")
        unused = unused_tensors(index, destinations)
        if unused:
            log(f"{len(unused):,} tensors of the checkpoint are not used by this model, such as {unused[0]}")
        del destinations, optional  # which hold on to what `prepare` replaces
        model.prepare()
        report(CorePhase(phase=Phase.WEIGHTS, progress=_whole(weight_bytes, "bytes"), outcome="done"))

        first, *others = pool_windows(model_config.cache_specs, config.max_model_len)
        assert not config.window_blocks or list(config.window_blocks) == others, "the plan has other pools"
        windows = first, *config.window_blocks
        num_blocks = config.num_blocks + sum(config.window_blocks.values())
        report(CorePhase(phase=Phase.CACHE, progress=Progress(total=num_blocks, unit="blocks")))
        self._caches = Caches(
            model_config.caches_of_layers,
            num_blocks=config.num_blocks,
            window_blocks=config.window_blocks,
            block_size=config.block_size,
            dtype=torch_dtype(config.kv_cache_dtype),
            device=device,
            state_rows=config.max_num_seqs + 1 + config.num_snapshots,
            state_dtype=dtype,
        )
        report(CorePhase(phase=Phase.CACHE, progress=_whole(num_blocks, "blocks"), outcome="done"))
        self.scheduler = Scheduler(
            Limits(
                max_num_seqs=config.max_num_seqs,
                max_num_batched_tokens=config.max_num_batched_tokens,
                max_model_len=config.max_model_len,
            ),
            CacheManager(
                *(
                    BlockPool(config.window_blocks.get(window or 0, config.num_blocks), config.block_size, window)
                    for window in windows
                ),
                prefix_caching=config.prefix_caching,
                snapshots=Snapshots(config.max_num_seqs + 1, config.num_snapshots) if model_config.has_states else None,
            ),
            drafts_of(config),
        )
        self._eos_token_ids = frozenset(model_config.eos_token_ids)
        self._vocab_size = model_config.vocab_size
        self._max_model_len = config.max_model_len
        num_rows = most_rows(config.max_num_seqs, config.num_speculative_tokens)
        inputs = StepInputs(
            max_num_tokens=config.max_num_batched_tokens,
            max_num_seqs=config.max_num_seqs,
            max_num_rows=num_rows,
            max_model_len=config.max_model_len,
            block_size=config.block_size,
            windows=windows,
            device=device,
            shapes=(shapes := _graph_shapes(config, first)),
            has_chains=model_config.has_states and config.drafts != "none",
        )
        histories = TokenHistories(
            vocab_size=model_config.vocab_size,
            eos_token_ids=self._eos_token_ids,
            max_num_seqs=config.max_num_seqs,
            max_model_len=config.max_model_len,
            device=device,
        )
        self._group = group
        self._runner = Runner(
            model, self._caches, kernels, inputs, histories,
            max_num_seqs=config.max_num_seqs, device=device, log=log, group=group,
        )  # fmt: skip
        # Launch a step before the last one's result is read, so that the device never waits for the host.
        self.overlaps = device.type == "cuda"
        self._in_flight: LaunchedStep | None = None
        self._grammars = Grammars(folder, model_config.vocab_size, model_config.eos_token_ids)
        self._compiling: dict[str, tuple[Request, futures.Future[LLMatcher | None]]] = {}
        group.wait_for_all(device)  # until all have loaded
        self._capture_first(shapes, dtype, report)
        self.prompt_tokens_computed = 0
        self.output_tokens_sampled = 0
        self.loaded = Loaded(
            vocab_size=model_config.vocab_size,
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            weight_bytes=weight_bytes,
            cache_bytes=self._caches.nbytes,
            selection=config.backends | _elsewhere(config),
            versions={"torch": str(torch.__version__)},
        )

    @property
    def steps(self) -> Mapping[StepKind, int]:
        """How many were computed in which way."""
        return self._runner.steps

    @property
    def idle(self) -> bool:
        return not len(self.scheduler) and not self._compiling and self._in_flight is None

    @property
    def num_waiting(self) -> int:
        """Requests that wait to be admitted, or for their grammar; probes are left out."""
        return self.scheduler.num_waiting + sum(not request.probe for request, _ in self._compiling.values())

    def _capture_first(
        self, shapes: Sequence[GraphShape], dtype: torch.dtype, report: Callable[[CorePhase], None]
    ) -> None:
        """Capture the graphs that an engine needs at once; `capture_next` captures the others."""
        if not shapes:
            report(CorePhase(phase=Phase.GRAPHS, outcome="skipped"))
            return
        self._runner.use_graphs(shapes, self._vocab_size, dtype)
        total = min(GRAPHS_BEFORE_READY, len(shapes))
        for done in range(total):
            report(CorePhase(phase=Phase.GRAPHS, progress=Progress(done=done, total=total, unit="graphs")))
            self._runner.capture_next()
        report(CorePhase(phase=Phase.GRAPHS, progress=_whole(total, "graphs"), outcome="done"))

    def capture_next(self) -> bool:
        """While there is nothing to do: capture one more CUDA graph; False if none is missing, or no memory is left for
        it."""
        return self._runner.capture_next()

    def submit(self, message: Submit) -> TokenOutput | None:
        """Queue a request; an output that ends it at once if it can never run."""
        sampling = message.sampling
        request = Request(
            request_id=message.request_id,
            prompt_token_ids=message.prompt_token_ids,
            sampling=sampling,
            seed=secrets.randbits(64) if sampling.seed is None else sampling.seed,
            priority=message.priority,
            cache_salt=message.cache_salt,
            probe=message.probe,
            pooling=message.pooling,
            submitted_at=time.perf_counter(),
        )
        refusal = (
            self.scheduler.refusal(request)
            or self._token_refusal(message)
            or sampling_refusal(sampling, self._vocab_size, self._eos_token_ids)
        )
        if refusal:
            return TokenOutput(request_id=message.request_id, finish_reason=FinishReason.ERROR, error=refusal)
        prepared = self._grammars.prepare(sampling)
        if prepared is not None:
            self._compiling[request.request_id] = request, prepared
        else:
            self.scheduler.add(request)
        return None

    def abort(self, request_id: str) -> None:
        """Free a request's resources; does nothing for one that has ended or is unknown."""
        self._compiling.pop(request_id, None)
        request = self.scheduler.get(request_id)
        if request is not None:
            self.scheduler.finish(request)

    def compiled(self) -> list[str]:
        """The requests whose grammars are compiled by now, so that `step` may admit them. Waits a moment for one where
        there is nothing else to do."""
        if self._compiling and not len(self.scheduler):
            futures.wait([compiled for _, compiled in self._compiling.values()], 0.01, futures.FIRST_COMPLETED)
        return [request_id for request_id, (_, compiled) in self._compiling.items() if compiled.done()]

    def step(self, compiled: Sequence[str] | None = None) -> list[TokenOutput]:
        """Launch the next step, and read the last one's result, or this one's where steps do not overlap. Returns the
        outputs of requests that got a token or ended. `compiled` is what another rank's `compiled()` gave."""
        outputs = self._admit(self.compiled() if compiled is None else compiled)
        if self.scheduler.awaits_tokens or (self._in_flight is not None and self._in_flight.has_drafts):
            outputs += self._read()
        step = self.scheduler.schedule()
        launched = None
        if step:
            self._note_prefills(step)
            computed = self._runner.compute(step)
            if any(item.request.needs_its_tokens for item in step):
                outputs += self._read()  # while the device computes
            launched = self._runner.sample(computed)
            self.scheduler.launched(step)
        outputs += self._read()
        self._in_flight = launched
        return outputs if self.overlaps else outputs + self._read()

    def _note_prefills(self, step: list[Scheduled]) -> None:
        """Count the prompt tokens that clients' requests compute, and record when each request was first launched."""
        now = time.perf_counter()
        for item in step:
            request = item.request
            if request.num_sampled:
                continue
            if request.launched_at is None:
                request.launched_at = now
            if not request.probe:
                self.prompt_tokens_computed += item.num_tokens

    def _admit(self, compiled: Sequence[str]) -> list[TokenOutput]:
        """Queue these requests, once their grammars are compiled. Returns the outputs of those whose grammar cannot
        be."""
        outputs = []
        for request_id in compiled:
            request, future = self._compiling.pop(request_id)
            try:
                with self._group.progress.preparing():  # this rank may still compile it
                    self._grammars.bind(request, future)
            except (GrammarError, CheckpointError) as error:
                bound = "thinking budget" if request.sampling.grammar is None else "grammar"
                outputs.append(_error(request, f"its {bound} cannot be used: {error}", is_refusal=True))
            else:
                self.scheduler.add(request)
        return outputs

    def _read(self) -> list[TokenOutput]:
        """The outputs of the step in flight, if there is one. What it computed for requests that have ended since is
        dropped."""
        if self._in_flight is None:
            return []
        step, result = self._in_flight.step, self._in_flight.result()
        self._in_flight = None
        damaged = self._end_damaged(
            [
                item.request
                for item, finite in zip(step, result.finite, strict=True)
                if not finite and self.scheduler.is_live(item.request)
            ]
        )
        for scores in result.prompt_scores:
            keep_scores(scores)
        for pooled in result.pooled:
            keep_pooled(pooled)
        logprobs = token_logprobs(result)
        self.scheduler.complete([item for item in step if self.scheduler.is_live(item.request)])
        outputs = [_error(request, NOT_FINITE) for request in damaged]
        for (item, token_ids, first), found in zip(result.sampled, logprobs, strict=True):
            if self.scheduler.is_live(item.request):
                outputs.append(self._take(item, token_ids, found))
                if result.predicted:
                    behind = result.predicted[first + len(token_ids) - 1]
                    item.request.predicted = item.request.num_tokens, behind
        return outputs

    def _take(
        self, item: Scheduled, token_ids: Sequence[int | None], logprobs: tuple[TokenLogprob, ...]
    ) -> TokenOutput:
        """Give a request its sampled token, and those behind its accepted drafts; None if every token is forbidden."""
        request, taken = item.request, []
        if request.pooling is not None:
            return self._embedded(request)
        if error := _grammar_error(request):
            return self._refuse(request, error)
        reason = None
        for token_id in token_ids:
            if token_id is None:
                return self._refuse(request, NOTHING_TO_SAMPLE)
            self.output_tokens_sampled += not request.probe
            taken.append(token_id)
            reason = request.accept(token_id, self._eos_token_ids, self._max_model_len)
            if reason is None and (error := _grammar_error(request)):
                return self._refuse(request, error)
            if reason is not None:
                break
        if item.drafts:
            self.scheduler.keep(item, len(taken) - 1)
        if reason is not None:
            self.scheduler.finish(request)
        first = len(request.output_token_ids) == len(taken)
        queued_s, prefill_s = _waits(request) if first else (None, None)
        stopped = reason is FinishReason.STOP and request.stops_at(taken[-1], self._eos_token_ids)
        return TokenOutput(
            request_id=request.request_id,
            token_ids=tuple(taken),
            logprobs=logprobs[: len(taken)],
            prompt_logprobs=_prompt_logprobs(request) if first else None,
            finish_reason=reason,
            stop_token_id=taken[-1] if stopped else None,
            num_cached_tokens=request.num_cached_tokens,
            queued_s=queued_s,
            prefill_s=prefill_s,
        )

    def _embedded(self, request: Request) -> TokenOutput:
        self.scheduler.finish(request)
        queued_s, prefill_s = _waits(request)
        return TokenOutput(
            request_id=request.request_id,
            finish_reason=FinishReason.STOP,
            num_cached_tokens=request.num_cached_tokens,
            queued_s=queued_s,
            prefill_s=prefill_s,
            embedding=embedding(request),
        )

    def _refuse(self, request: Request, error: str) -> TokenOutput:
        """End a request that asks for what cannot be."""
        self.scheduler.finish(request)
        return _error(request, error, is_refusal=True)

    def _end_damaged(self, damaged: list[Request]) -> list[Request]:
        """End requests whose numbers are damaged, and those that share a damaged block with them. Returns them all.

        Blocks that only they hold are never found again, and overwritten with zeros. What others hold too is sound, and
        stays as it is.
        """
        if not damaged:
            return []
        ended = list(damaged)
        bad: set[tuple[int, int]] = set()
        found = ended
        while found:
            held = {block for request in ended for block in request.blocks}
            others = [request for request in self.scheduler.running if request not in ended]
            shared = held.intersection(block for other in others for block in other.blocks)
            for pool, blocks in _by_pool(shared - bad).items():
                bad.update((pool, block) for block in self._caches.not_finite(blocks, self._group, pool))
            found = [other for other in others if bad.intersection(other.blocks)]
            ended += found
        own = held - shared
        self.scheduler.cache.forget(own, ended)
        for request in ended:
            self.scheduler.finish(request)
        for pool, blocks in _by_pool(own).items():
            self._caches.scrub(blocks, pool)
        return ended

    def _token_refusal(self, message: Submit) -> str | None:
        for token_id in (min(message.prompt_token_ids), max(message.prompt_token_ids)):
            if not 0 <= token_id < self._vocab_size:
                return f"token id {token_id} is outside the vocabulary of {self._vocab_size:,}"
        return None


def _by_pool(found: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    """The blocks of each pool, in order: all ranks must go through them alike."""
    return {pool: [block for _, block in each] for pool, each in groupby(sorted(found), key=itemgetter(0))}


def _elsewhere(config: EngineConfig) -> dict[str, str]:
    """Place -> backend, where that is not what its op has otherwise."""
    return {at: name for at, name in config.places.items() if name != config.backends.get(at.partition("@")[0])}


def _graph_shapes(config: EngineConfig, window: int | None) -> list[GraphShape]:
    if config.enforce_eager:
        return []
    return graph_shapes(
        max_num_seqs=most_rows(config.max_num_seqs, config.num_speculative_tokens),
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        window=window,
        prefills=config.prefill_graphs,
    )


def _waits(request: Request) -> tuple[float | None, float | None]:
    """How long it was queued, and how long its prefill took from there."""
    if request.launched_at is None:
        return None, None
    return request.launched_at - request.submitted_at, time.perf_counter() - request.launched_at


def _grammar_error(request: Request) -> str:
    """Why its grammar cannot be followed any more, if it cannot."""
    error = request.constraint.error if request.constraint else ""
    return f"its grammar cannot be followed: {error}" if error else ""


def _error(request: Request, error: str, *, is_refusal: bool = False) -> TokenOutput:
    return TokenOutput(
        request_id=request.request_id, finish_reason=FinishReason.ERROR, error=error, is_refusal=is_refusal
    )


def _prompt_logprobs(request: Request) -> PromptLogprobs | None:
    return None if request.sampling.prompt_logprobs is None else request.prompt_logprobs


def _whole(total: int, unit: str) -> Progress:
    return Progress(done=total, total=total, unit=unit)
