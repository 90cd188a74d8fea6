"""OpenAI's Agents SDK: its models of the Responses API and of chats. Runs in its own venv."""

import asyncio
import os
from typing import Any, Literal

import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    handoff,
    set_tracing_disabled,
)  # fmt: skip
from agents.exceptions import MaxTurnsExceeded
from openai import AsyncOpenAI
from openai.types.shared import Reasoning
from pydantic import BaseModel

set_tracing_disabled(True)
CLIENT = AsyncOpenAI(base_url=f"{os.environ['INGOT_URL']}/v1", api_key="none", max_retries=0)
LOOP = asyncio.new_event_loop()
QUESTION = "What does sealed mean?"
MODELS = {"responses": OpenAIResponsesModel, "chat": OpenAIChatCompletionsModel}


class Person(BaseModel):
    name: Literal["Ann", "Bob"]
    age: Literal[30, 40]


@function_tool
def get_weather(city: Literal["Rome", "Paris"]) -> str:
    """The weather of a place."""
    return f"24 C in {city}"


@function_tool
def get_time(zone: Literal["UTC", "CET"]) -> dict[str, str]:
    """The time in a zone."""
    return {"time": "12:00"}


@pytest.fixture(params=MODELS)
def model(request: Any) -> Any:
    return MODELS[request.param]("ingot-guide", openai_client=CLIENT)


def run(agent: Agent[Any], asked: Any = QUESTION, **given: Any) -> Any:
    return LOOP.run_until_complete(Runner.run(agent, asked, **given))


def settings(**given: Any) -> ModelSettings:
    return ModelSettings(**{"max_tokens": 300, "include_usage": True, **given})


def test_an_answer(model: Any) -> None:
    result = run(Agent(name="guide", instructions="Be brief.", model=model, model_settings=settings()))
    assert result.final_output
    assert result.context_wrapper.usage.output_tokens > 0


def test_tools_then_an_answer(model: Any) -> None:
    """What is demanded is reset behind the first call, as the SDK does it."""
    for choice in ("required", "get_time"):
        agent = Agent(
            name="guide", model=model, tools=[get_weather, get_time],
            model_settings=settings(tool_choice=choice, parallel_tool_calls=True),
        )  # fmt: skip
        result = run(agent)
        assert result.final_output
        assert [item for item in result.new_items if item.type == "tool_call_output_item"]
        more = run(agent, [*result.to_input_list(), {"role": "user", "content": "Thanks"}])
        assert more.final_output


def test_streamed(model: Any) -> None:
    agent = Agent(name="guide", model=model, tools=[get_weather], model_settings=settings(tool_choice="required"))

    async def follow() -> tuple[list[str], Any]:
        result = Runner.run_streamed(agent, QUESTION)
        return [event.type async for event in result.stream_events()], result

    kinds, result = LOOP.run_until_complete(follow())
    assert "raw_response_event" in kinds
    assert "run_item_stream_event" in kinds
    assert result.final_output
    assert result.context_wrapper.usage.output_tokens > 0


def test_a_handoff(model: Any) -> None:
    expert = Agent(name="expert", model=model, model_settings=settings(), handoff_description="Knows all")
    first = Agent(
        name="first", model=model, handoffs=[handoff(expert)], model_settings=settings(tool_choice="transfer_to_expert")
    )
    result = run(first)
    assert result.last_agent.name == "expert"
    assert result.final_output


def test_structured_output(model: Any) -> None:
    agent = Agent(name="guide", model=model, output_type=Person, model_settings=settings())
    assert isinstance(run(agent).final_output, Person)
    with_tools = Agent(
        name="guide", model=model, output_type=Person, tools=[get_time], model_settings=settings(tool_choice="none")
    )
    assert isinstance(run(with_tools).final_output, Person)


def test_settings(model: Any) -> None:
    chosen = settings(
        temperature=0.5, top_p=0.9, reasoning=Reasoning(effort="low"), truncation="auto", store=False,
        metadata={"a": "b"}, top_logprobs=2, prompt_cache_retention=None,
    )  # fmt: skip
    assert run(Agent(name="guide", model=model, model_settings=chosen)).final_output


def test_a_session(model: Any) -> None:
    session = SQLiteSession("one")
    agent = Agent(name="guide", model=model, tools=[get_time], model_settings=settings(tool_choice="required"))
    for _ in range(3):
        assert run(agent, session=session).final_output


def test_it_does_not_end(model: Any) -> None:
    agent = Agent(
        name="guide",
        model=model,
        tools=[get_time],
        reset_tool_choice=False,
        model_settings=settings(tool_choice="required"),
    )
    with pytest.raises(MaxTurnsExceeded):
        run(agent, max_turns=3)
