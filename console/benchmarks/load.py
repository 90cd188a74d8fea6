"""The load: so many streams at once, each asking for the same number of tokens, timed as a client sees it."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator

import httpx
import msgspec

STREAMS = (1, 8)
OUTPUT_TOKENS = 64
REQUESTS_PER_STREAM = 3
READ_TIMEOUT_S = 120.0
PROMPT = (
    "Request {number}. An ingot is metal cast into a shape that is easy to store and to carry. "
    "Describe, step by step, how an ingot is made, from the furnace to the store:"
)
"""Begins with a number, so that no request finds another's prefix in the cache."""


class LoadError(Exception):
    """The front door did not answer as it should; the text says how."""


class Result(msgspec.Struct, frozen=True):
    """One number of streams. Rates are output tokens a second, over all streams; first tokens' times are in seconds."""

    streams: int
    requests: int
    output_tokens: int
    seconds: float
    tokens_per_s: float
    first_token_median_s: float
    first_token_worst_s: float


async def run(base_url: str, model: str, headers: dict[str, str], streams: int) -> Result:
    timeout = httpx.Timeout(READ_TIMEOUT_S, connect=5.0)
    limits = httpx.Limits(max_connections=streams)
    async with httpx.AsyncClient(
        base_url=base_url, headers=headers, timeout=timeout, limits=limits, trust_env=False
    ) as client:
        began = time.perf_counter()
        each = await asyncio.gather(*(_stream(client, model, stream, streams) for stream in range(streams)))
        took = time.perf_counter() - began
    firsts = [first for stream in each for first, _ in stream]
    tokens = sum(count for stream in each for _, count in stream)
    return Result(
        streams=streams,
        requests=len(firsts),
        output_tokens=tokens,
        seconds=took,
        tokens_per_s=tokens / took,
        first_token_median_s=statistics.median(firsts),
        first_token_worst_s=max(firsts),
    )


async def _stream(client: httpx.AsyncClient, model: str, stream: int, streams: int) -> list[tuple[float, int]]:
    """One client after another request: (time to the first token, tokens) of each."""
    numbers = range(stream, REQUESTS_PER_STREAM * streams, streams)
    return [await _request(client, model, streams * 1000 + number) for number in numbers]


async def _request(client: httpx.AsyncClient, model: str, number: int) -> tuple[float, int]:
    body = {
        "model": model,
        "prompt": PROMPT.format(number=number),
        "max_tokens": OUTPUT_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began = time.perf_counter()
    first: float | None = None
    tokens = 0
    try:
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                text = (await answer.aread()).decode(errors="replace")
                raise LoadError(f"The engine answered with status {answer.status_code}: {text[:300]}")
            async for chunk in _chunks(answer):
                if first is None and chunk.get("choices"):
                    first = time.perf_counter() - began
                if usage := chunk.get("usage"):
                    tokens = usage["completion_tokens"]
    except httpx.HTTPError as error:
        raise LoadError(f"The connection to the engine broke: {type(error).__name__} {error}.") from error
    if first is None or not tokens:
        raise LoadError("The engine ended a stream without a token. The log says why.")
    return first, tokens


async def _chunks(answer: httpx.Response) -> AsyncIterator[dict]:  # type: ignore[type-arg]
    async for line in answer.aiter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            chunk = msgspec.json.decode(line[6:])
            if "error" in chunk:
                raise LoadError(f"The engine ended a stream early: {chunk['error'].get('message', '')}")
            yield chunk
