"""Requests for embeddings at the front door, without a model."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from array import array
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from appliance.core_protocol import FinishReason, Outputs, Submit, TokenOutput
from appliance.engine_client.client import CoreClient
from appliance.serving import embedding
from appliance.serving.embedding import MAX_NUMBERS, Embedder
from appliance.serving.errors import ApiError
from appliance.serving.json_list import json_list
from appliance.serving.ollama import embed


class FakeRequest:
    """Its client stays."""

    def __init__(self, **content: Any) -> None:
        self.scope: dict[str, Any] = {}
        self._content = content

    async def body(self) -> bytes:
        return json.dumps(self._content).encode()

    async def receive(self) -> Any:
        await asyncio.Event().wait()


class FakeModel:
    name = "tiny"
    strict_requests = True
    max_model_len = 64
    hidden_size = 4
    pooling = None
    tokenizer = SimpleNamespace(longest_token=8, special_ids=frozenset[int]())

    def check_pooling(self) -> None: ...

    def room(self, *given: Any) -> None: ...

    def cache_salt(self, *given: Any) -> str:
        return ""

    def encode_at_once(self, *given: Any, **more: Any) -> list[int]:
        return [7]


@pytest.mark.parametrize(
    ("route", "field"), [(embed.embed, "input"), (embed.embed_prompt, "prompt")], ids=["embed", "embeddings"]
)
async def test_a_request_keeps_to_the_model_that_its_texts_were_encoded_for(
    monkeypatch: pytest.MonkeyPatch, route: Any, field: str
) -> None:
    """Another may run by the time they are."""
    served = [(object(), FakeModel()) for _ in range(2)]
    asked: list[Any] = []

    class Recorder:
        def __init__(self, client: Any, model: Any, *given: Any) -> None:
            asked.append((client, model))

        async def embed(self, *given: Any) -> list[Any]:
            raise InterruptedError

    monkeypatch.setattr(embed, "Embedder", Recorder)
    coming = iter(served)
    front_door = SimpleNamespace(on_vllm=False, metrics=None, serving=lambda: next(coming))
    with pytest.raises(InterruptedError):
        await route.fn(FakeRequest(**{field: "hello"}), front_door)
    assert asked == served[:1]


class Answering:
    """A channel to a core that answers each request in the next turn of the loop."""

    def __init__(self) -> None:
        self.client = CoreClient(self)
        self.asked = 0
        self.begun = asyncio.Event()

    def send(self, message: Any) -> None:
        assert isinstance(message, Submit)
        self.asked += 1
        self.begun.set()
        vector = array("f", [3, 4, 0, 0]).tobytes()
        output = TokenOutput(request_id=message.request_id, finish_reason=FinishReason.STOP, embedding=vector)
        asyncio.get_running_loop().call_soon(self.client.deliver, Outputs([output]))

    async def receive(self) -> Any:
        await asyncio.Event().wait()


def embedder(client: CoreClient) -> Embedder:
    model: Any = FakeModel()
    metrics: Any = SimpleNamespace(stopwatch=lambda *given: mock.MagicMock())
    return Embedder(client, model, metrics, "", None)


async def test_a_drain_waits_for_all_inputs_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time, so that there is a moment between two of them."""
    monkeypatch.setattr(embedding, "AT_ONCE", 1)
    core = Answering()
    request: Any = FakeRequest()
    embedded = asyncio.create_task(embedder(core.client).embed(request, [[1], [2], [3]], None))
    await core.begun.wait()
    await asyncio.wait_for(core.client.idle(), 5)
    assert core.asked == 3
    assert len(await embedded) == 3


async def test_an_answer_has_so_many_numbers_at_most() -> None:
    """Fewer dimensions make room for more inputs."""
    core = Answering()
    request: Any = FakeRequest()
    many = [[1]] * (MAX_NUMBERS // 4 + 1)
    for dimensions, inputs in ((None, many), (4, many), (3, [[1]] * (MAX_NUMBERS // 3 + 1))):
        with pytest.raises(ApiError) as refused:
            await embedder(core.client).embed(request, inputs, dimensions)
        assert (refused.value.status, refused.value.param) == (400, "input")
    assert not core.asked
    model: Any = FakeModel()
    embedding.check_size(len(many), 3, model)
    embedding.check_size(MAX_NUMBERS // 4, None, model)


def test_vectors_are_encoded_one_by_one() -> None:
    """So that their numbers, and the lists of them, never exist all at once."""
    vectors = [array("f", [0.1 * place] * 256) for place in range(256)]
    assert json.loads(bytes(json_list(each.tolist() for each in vectors))) == [each.tolist() for each in vectors]
    assert bytes(json_list([])) == b"[]"
    tracemalloc.start()
    text = json_list(each.tolist() for each in vectors)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * len(bytes(text))
