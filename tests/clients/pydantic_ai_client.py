"""Pydantic AI over OpenAI's client, and instructor over that and Anthropic's. Runs in their own venv."""

import asyncio
import contextlib
import os
from typing import Any, Literal

import anthropic
import instructor
import openai
import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.messages import ModelMessagesTypeAdapter
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

URL = os.environ["INGOT_URL"]
NAME = "ingot-guide"
QUESTION = "What does sealed mean?"
LOOP = asyncio.new_event_loop()
OPENAI = OpenAIProvider(openai_client=openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0))
MODELS = {
    "chat": OpenAIChatModel(NAME, provider=OPENAI),
    "responses": OpenAIResponsesModel(NAME, provider=OPENAI),
}


class Person(BaseModel, extra="forbid"):
    name: Literal["Ann", "Bob"]
    age: Literal[30, 40]


@pytest.fixture(params=MODELS)
def api(request: Any) -> str:
    return request.param


def agent(api: str, **given: Any) -> Agent[Any, Any]:
    settings = {"max_tokens": 300, "temperature": 0.0, **given.pop("settings", {})}
    return Agent(MODELS[api], model_settings=settings, retries=0, **given)


def run(asked: Agent[Any, Any], question: Any = QUESTION, **given: Any) -> Any:
    return LOOP.run_until_complete(asked.run(question, **given))


def test_an_answer_and_its_history(api: str) -> None:
    first = run(agent(api, instructions="Be brief."))
    assert first.output
    assert first.usage.output_tokens > 0
    history = ModelMessagesTypeAdapter.validate_json(first.all_messages_json())
    assert run(agent(api), message_history=history).output


def test_streamed(api: str) -> None:
    async def follow() -> str:
        async with agent(api).run_stream(QUESTION) as result:
            return "".join([text async for text in result.stream_text(delta=True, debounce_by=None)])

    assert LOOP.run_until_complete(follow()) == run(agent(api)).output


@pytest.mark.parametrize("form", [ToolOutput, NativeOutput])
def test_structured_output(api: str, form: Any) -> None:
    assert isinstance(run(agent(api, output_type=form(Person))).output, Person)


def test_tools(api: str) -> None:
    def get_time(zone: Literal["UTC", "CET"]) -> dict[str, Any]:
        """The time in a zone."""
        return {"time": ["12:00", zone]}

    called = agent(api, tools=[get_time], output_type=ToolOutput(Person), settings={"parallel_tool_calls": True})
    limits = UsageLimits(request_limit=5)
    with contextlib.suppress(UsageLimitExceeded):  # the model may call get_time for ever
        assert isinstance(run(called, usage_limits=limits).output, Person)


@pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS"])
def test_instructor(mode: str) -> None:
    client = instructor.from_openai(
        openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0), mode=getattr(instructor.Mode, mode)
    )
    messages: Any = [{"role": "user", "content": QUESTION}]
    given = {"max_output_tokens" if mode.startswith("RESPONSES") else "max_tokens": 200}
    found = client.create(model=NAME, messages=messages, response_model=Person, max_retries=0, **given)
    assert isinstance(found, Person)


def test_instructor_with_anthropic() -> None:
    client = instructor.from_anthropic(anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0))
    messages: Any = [{"role": "user", "content": QUESTION}]
    found = client.create(model=NAME, messages=messages, response_model=Person, max_tokens=200, max_retries=0)
    assert isinstance(found, Person)
    parts = list(
        client.create_partial(model=NAME, messages=messages, response_model=Person, max_tokens=200, max_retries=0)
    )
    assert parts[-1].name in ("Ann", "Bob")
