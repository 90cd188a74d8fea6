"""`make bench-structured`: what structured output costs on the CPU, and whether its answers are what was asked for.

The cost: a random Llama of 27 million parameters, eight streams of as many tokens with a schema as without, in turns
that follow each other closely. With a schema, an answer is a list of what one of fifty says, too long to end before its
tokens do. The validity: ten answers of the bundled model for each of the fifty, sampled at temperature 1 and judged by
jsonschema; one that `max_tokens` cuts off counts as wrong.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

import httpx

from appliance.bench.server import PATHS
from appliance.home import Home
from tests.bench import shapes
from tests.bench.load import Client, measured
from tests.bench.schemas import SCHEMAS
from tests.bench.servers import Server, ingot
from tests.bench.shapes import SHAPES
from tests.bench.table import Figure, conclude, describe_machine
from tests.running import temporary_home

NAME = "llama-27m"
STREAMS = 8
REQUESTS = 24  # in one turn
TOKENS = 128
TURNS = 9
ANSWERS = 10  # for each schema
COST_GOAL = 0.97  # of the speed of free answers
MOST_TOKENS = 1500


def main() -> int:
    describe_machine()
    with temporary_home() as folder, Client() as client:
        home = Home.at(folder).create()
        shapes.write(home.models / NAME, SHAPES[NAME])
        settings = {"device": "cpu", "max-num-seqs": 16, "max-model-len": 2048}
        figures = with_server(ingot(home.root, NAME, settings), lambda server: cost(server, client))
        figures += with_server(ingot(home.root, "bundled", settings), validity)
    return conclude(figures)


def with_server(server: Server, measure: Any) -> list[Figure]:
    try:
        server.start()
        return list(measure(server))
    finally:
        server.end()


class Turns:
    """Of one server: as many answers in each, with the next of the schemas or without."""

    def __init__(self, server: Server, client: Client, schemas: Sequence[dict[str, Any]], streams: int, requests: int):
        self._server, self._client = server, client
        self._schemas = cycle(endless(schema) for schema in schemas)
        self._streams, self._requests = streams, requests

    def take(self, *, structured: bool) -> tuple[float, float]:
        """Tokens a second, and milliseconds of processor time for each."""
        bodies = [
            body(self._server.model, next(self._schemas) if structured else None, seed)
            for seed in range(self._requests)
        ]
        used = self._server.processor_s()
        answers = self._client.put(self._server.url, PATHS["completions"], bodies, self._streams)
        tokens = sum(answer.tokens for answer in answers)
        assert tokens == self._requests * TOKENS, tokens
        return measured(answers).tokens_per_s, 1e3 * (self._server.processor_s() - used) / tokens


def cost(server: Server, client: Client) -> list[Figure]:
    turns = Turns(server, client, SCHEMAS, STREAMS, REQUESTS)
    bound: list[tuple[float, float]] = []
    free: list[tuple[float, float]] = []
    for structured in (True, True, True, False):  # every schema has been compiled once
        turns.take(structured=structured)
    for number in range(TURNS):
        for structured in (True, False) if number % 2 else (False, True):
            (bound if structured else free).append(turns.take(structured=structured))
    shares = [mine / theirs for (mine, _), (theirs, _) in zip(bound, free, strict=True)]
    costs = [theirs / mine for (_, mine), (_, theirs) in zip(bound, free, strict=True)]
    what = f"{STREAMS} streams, tokens a second with a schema as a share of those without"
    return [
        Figure("structured_share_of_free", what, shares, COST_GOAL, "x", at_least=True),
        Figure("structured_processor_share", "  the same of tokens for a second of processor time", costs, None, "x"),
        Figure("structured_tokens_per_s", "  with a schema", [speed for speed, _ in bound], None, "/s"),
        Figure("free_tokens_per_s", "  without", [speed for speed, _ in free], None, "/s"),
    ]


def endless(schema: dict[str, Any]) -> dict[str, Any]:
    """A list of what it says, of more items than an answer has tokens."""
    whole = {name: value for name, value in schema.items() if name != "$defs"}
    items = json.loads(json.dumps(whole).replace('"$ref": "#"', '"$ref": "#/$defs/whole"'))
    return {"type": "array", "items": items, "minItems": TOKENS, "$defs": {**schema.get("$defs", {}), "whole": items}}


def body(model: str, schema: dict[str, Any] | None, seed: int) -> bytes:
    asked: dict[str, Any] = {"prompt": [300 + seed, 301, 302], "max_tokens": TOKENS, "temperature": 1, "seed": seed}
    asked |= {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}, "model": model}
    return json.dumps(asked if schema is None else {**asked, "structured_outputs": {"json": schema}}).encode()


def validity(server: Server) -> list[Figure]:
    from jsonschema import Draft202012Validator, ValidationError  # late: a GPU machine has none, and measures no more

    wrong = 0
    for schema, choice in answers(server):
        try:
            assert choice["finish_reason"] == "stop", f"{choice['finish_reason']} ends it"
            judge = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
            judge.validate(json.loads(choice["message"]["content"]))
        except (AssertionError, ValueError, ValidationError) as error:
            wrong += 1
            print(f"{json.dumps(schema)[:200]}\n  {choice['message']['content'][:200]}\n  {str(error)[:200]}")
    what = f"{ANSWERS * len(SCHEMAS)} answers over {len(SCHEMAS)} schemas, not valid"
    return [Figure("structured_invalid", what, [float(wrong)], 0, "")]


def answers(server: Server) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for number, schema in enumerate(SCHEMAS):
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        asked = {"messages": [{"role": "user", "content": "Answer."}], "response_format": form, "n": ANSWERS}
        sampled = {"temperature": 1, "seed": number, "max_tokens": MOST_TOKENS}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json={**asked, **sampled}, timeout=300)
        answer.raise_for_status()
        yield from ((schema, choice) for choice in answer.json()["choices"])


if __name__ == "__main__":
    sys.exit(main())
