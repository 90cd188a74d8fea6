"""The scores of an echo: asked for once a prompt, shared among its choices, and bounded."""

from __future__ import annotations

import asyncio
import json
import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from appliance.core_protocol import FinishReason, Outputs, PromptLogprobs, Submit, TokenLogprob, TokenOutput
from appliance.engine_client.client import CoreClient
from appliance.home import Home
from appliance.plan.launch import NativePlan
from appliance.serving.answering import Answering, Ask
from appliance.serving.completions import MAX_SCORES, CompletionAnswer, CompletionFields
from appliance.serving.served_model import INLINE_TOKENS, ServedModel
from appliance.supervisor.preflight import run_preflight
from tests.supervisor.scripted import Door, make_profile

PROMPTS = [[70, 71, 72], [73, 74]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    home = Home.at(tmp_path_factory.mktemp("echo") / "home").create()
    plan = run_preflight(home, json.loads(make_profile(home).read_bytes())).plan
    assert isinstance(plan, NativePlan)
    return ServedModel.load(plan, 0)


def start(model: ServedModel, ask: Ask) -> tuple[CoreClient, Answering, list[Submit]]:
    channel = MagicMock()
    client = CoreClient(channel)
    metrics: Any = SimpleNamespace(stopwatch=MagicMock())
    answering = Answering(client, model, metrics, ask)
    return client, answering, [call.args[0] for call in channel.send.call_args_list]


def output(submit: Submit, logprob: float) -> TokenOutput:
    scores = None
    if submit.sampling.prompt_logprobs is not None:
        scored = submit.prompt_token_ids[1:]
        scores = PromptLogprobs([logprob] * len(scored), scored, [logprob] * len(scored))
    return TokenOutput(
        request_id=submit.request_id, token_ids=(80,), logprobs=(TokenLogprob(80, -1.0),), prompt_logprobs=scores,
        finish_reason=FinishReason.LENGTH,
    )  # fmt: skip


async def written(answer: CompletionAnswer, answering: Answering, *, streamed: bool) -> list[dict[str, Any]]:
    if not streamed:
        choices = answering.choices
        return list(answer.whole(choices, await answering.whole())["choices"])
    lines = [frame.removeprefix(b"data: ") async for frame in answer.frames(answering)]
    return [json.loads(line)["choices"][0] for line in lines if line.strip() != b"[DONE]"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_prompt_is_scored_once_for_all_of_its_choices(model: ServedModel, streamed: bool) -> None:
    """Also where the others have their first token before the one that is scored."""
    fields = CompletionFields(prompt=[*PROMPTS], n=3, echo=True, logprobs=1)
    ask = Ask(prompts=PROMPTS, fields=fields, max_tokens=[1, 1], logprobs=1, prompt_logprobs=1)
    client, answering, submits = start(model, ask)
    assert [submit.sampling.prompt_logprobs for submit in submits] == [1, None, None, 1, None, None]
    answer = CompletionAnswer(model, ask, fields, await model.echoes(PROMPTS))
    reader = asyncio.create_task(written(answer, answering, streamed=streamed))
    for scored in (False, True):
        for place, submit in enumerate(submits):
            if (submit.sampling.prompt_logprobs is not None) == scored:
                client.deliver(Outputs([output(submit, -0.5 - place)]))
        await asyncio.sleep(0.01)
    choices = await asyncio.wait_for(reader, 5)
    assert len(choices) == 6
    for choice in choices:
        expected = [-0.5, -0.5] if choice["index"] < 3 else [-3.5]
        assert choice["logprobs"]["token_logprobs"] == [None, *expected, -1.0]


async def test_the_alternatives_have_the_token_itself(model: ServedModel) -> None:
    """Of prompt and answer, where it is none of the best: one more than was asked for, as in OpenAI's API."""
    fields = CompletionFields(prompt=[[70, 71, 72]], echo=True, logprobs=1, return_tokens_as_token_ids=True)
    ask = Ask(prompts=[[70, 71, 72]], fields=fields, max_tokens=[1], logprobs=1, prompt_logprobs=1)
    client, answering, (submit,) = start(model, ask)
    scores = PromptLogprobs([-3.0, -0.25], [90, 72], [-0.5, -0.25])
    said = TokenLogprob(80, -2.0, ((81, -1.0),))
    client.deliver(Outputs([TokenOutput(
        request_id=submit.request_id, token_ids=(80,), logprobs=(said,), prompt_logprobs=scores,
        finish_reason=FinishReason.LENGTH,
    )]))  # fmt: skip
    answer = CompletionAnswer(model, ask, fields, await model.echoes(ask.prompts))
    (choice,) = await written(answer, answering, streamed=False)
    assert choice["logprobs"]["top_logprobs"] == [
        None,
        {"token_id:90": -0.5, "token_id:71": -3.0},
        {"token_id:72": -0.25},
        {"token_id:81": -1.0, "token_id:80": -2.0},
    ]


async def test_a_long_prompt_is_decoded_beside_the_loop(model: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    detokenizer = model.detokenizer

    def watched(*arguments: Any, **options: Any) -> Any:
        threads.append(threading.current_thread())
        return detokenizer(*arguments, **options)

    monkeypatch.setattr(model, "detokenizer", watched)
    for length in (INLINE_TOKENS, INLINE_TOKENS + 1):
        assert len((await model.echoes([[70] * length]))[0].offsets) == length
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


def test_an_echo_with_too_many_scores_is_refused(door: Door) -> None:
    """A number for each token, each of its alternatives and each choice."""
    body = {"prompt": [[70] * 400] * 4, "max_tokens": 1, "echo": True, "logprobs": 3, "n": 20}
    assert 400 * 4 * 4 * 20 <= MAX_SCORES < 400 * 4 * 5 * 20
    assert door.http.post("/v1/completions", json=body).status_code == 200
    refused = door.http.post("/v1/completions", json={**body, "logprobs": 4})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "logprobs")
    assert door.http.post("/v1/completions", json={**body, "logprobs": 4, "echo": False}).status_code == 200
    assert MAX_SCORES >= 8192 * 6
