"""Texts as vectors: what every API that embeds comes down to."""

from __future__ import annotations

import asyncio
import math
import sys
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from litestar import Request

from appliance.core_protocol import FinishReason, SamplingParams
from appliance.engine_client.client import CoreClient, Generation
from appliance.engine_process.errors import EngineGoneError, TooManyRequestsError
from appliance.serving.answering import too_many, unless_gone
from appliance.serving.choice import run_error
from appliance.serving.errors import ApiError, bad_request, engine_gone
from appliance.serving.served_model import ServedModel

if TYPE_CHECKING:
    from appliance.serving.metrics import Metrics
    from appliance.serving.stopwatch import Stopwatch

MAX_INPUTS: Final = 2048
MAX_NUMBERS: Final = 1 << 21
"""Of all vectors of one answer: as JSON about 40 MB."""
# Of one request, so that others do not wait for all of its inputs.
AT_ONCE: Final = 32
ONE_TOKEN: Final = SamplingParams(max_tokens=1, temperature=0)  # the engine reads a prompt by sampling what comes next


class Embedder:
    """Embeds the prompts of one request. `key_id` names the API key that asks, "" for none."""

    def __init__(self, client: CoreClient, model: ServedModel, metrics: Metrics, key_id: str, salt: str | None) -> None:
        self._client = client
        self._model = model
        self._metrics = metrics
        self._key_id = key_id
        self._salt = model.cache_salt(key_id, salt)
        self._places = asyncio.Semaphore(AT_ONCE)

    async def embed(
        self, request: Request[Any, Any, Any], prompts: Sequence[list[int]], dimensions: int | None
    ) -> list[array[float]]:
        """In order, of length 1, each of so many dimensions. Raises ApiError, ClientGoneError where the client is."""
        check_size(len(prompts), dimensions, self._model)
        return await unless_gone(request, self._all(prompts, dimensions))

    async def _all(self, prompts: Sequence[list[int]], dimensions: int | None) -> list[array[float]]:
        tasks = [asyncio.ensure_future(self._one(prompt, dimensions)) for prompt in prompts]
        with self._client.batch():
            try:
                return await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()

    async def _one(self, prompt: list[int], dimensions: int | None) -> array[float]:
        async with self._places:
            watch = self._metrics.stopwatch(len(prompt), self._model.name, self._key_id)
            generation = self._start(prompt, watch)
            try:
                output = await generation.read()
                if output.finish_reason is FinishReason.ERROR:
                    raise run_error(output)
                watch.finished(FinishReason.STOP, output.num_cached_tokens)
            except EngineGoneError as error:
                watch.failed()
                raise engine_gone(str(error)) from None
            except ApiError:
                watch.failed()
                raise
            finally:
                self._client.release(generation)
                if not watch.ended:
                    watch.aborted()
            assert output.embedding is not None
            return unit_vector(output.embedding, dimensions)

    def _start(self, prompt: list[int], watch: Stopwatch) -> Generation:
        pooling = self._model.pooling
        try:
            generation = self._client.start(prompt, ONE_TOKEN, cache_salt=self._salt, watch=watch, pooling=pooling)
        except TooManyRequestsError as error:
            raise too_many(error) from None
        except EngineGoneError as error:
            raise engine_gone(str(error)) from None
        watch.accepted()
        return generation


def check_size(inputs: int, dimensions: int | None, model: ServedModel) -> None:
    if dimensions is not None and dimensions > model.hidden_size:
        message = f"dimensions: {dimensions:,} is too large; the model's embeddings have {model.hidden_size:,}."
        raise bad_request(message, "dimensions")
    each = dimensions or model.hidden_size
    if inputs * each > MAX_NUMBERS:
        message = (
            f"input: {inputs:,} inputs of {each:,} dimensions are {inputs * each:,} numbers, more than the "
            f"{MAX_NUMBERS:,} of one answer; send {MAX_NUMBERS // each:,} inputs or fewer, or ask for fewer dimensions."
        )
        raise bad_request(message, "input")


def unit_vector(embedding: bytes, dimensions: int | None) -> array[float]:
    """Its first dimensions, at length 1: models made for that keep most of the meaning there (Matryoshka embeddings,
    arXiv 2205.13147)."""
    values = array("f", embedding)
    if sys.byteorder == "big":
        values.byteswap()
    values = values[:dimensions]
    length = math.hypot(*values) or 1.0
    return array("f", [value / length for value in values])
