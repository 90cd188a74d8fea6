"""LiteLLM: its providers openai, anthropic and ollama_chat. Runs in its own venv."""

import asyncio
import json
import os
from typing import Any, Literal

import litellm
import pytest
from pydantic import BaseModel, Field

URL = os.environ["INGOT_URL"]
QUESTION = [{"role": "user", "content": "What does sealed mean?"}]
LOOP = asyncio.new_event_loop()
APIS: dict[str, dict[str, Any]] = {
    "openai": {"model": "openai/ingot-guide", "api_base": f"{URL}/v1", "api_key": "none"},
    "hosted_vllm": {"model": "hosted_vllm/ingot-guide", "api_base": f"{URL}/v1", "api_key": "none"},
    "anthropic": {"model": "anthropic/ingot-guide", "api_base": URL, "api_key": "none"},
    "ollama_chat": {"model": "ollama_chat/ingot-guide", "api_base": URL},
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "What is there",
            "parameters": {"type": "object", "properties": {"city": {"enum": ["Rome", "Paris"]}}, "required": ["city"]},
        },
    }
    for name in ("get_weather", "get_time")
]


class Person(BaseModel):
    name: Literal["Ann", "Bob"]
    tags: list[Literal["a", "b"]] = Field(max_length=2)


@pytest.fixture(params=APIS)
def api(request: Any) -> str:
    return request.param


def ask(api: str, messages: Any = QUESTION, **given: Any) -> Any:
    return litellm.completion(messages=messages, num_retries=0, **{"max_tokens": 60, **given}, **APIS[api])


def test_whole_and_streamed(api: str) -> None:
    whole = ask(api)
    assert whole.choices[0].message.content
    assert whole.usage.prompt_tokens > 0
    assert whole.usage.completion_tokens > 0
    chunks = list(ask(api, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    usage = next(chunk.usage for chunk in reversed(chunks) if getattr(chunk, "usage", None))
    assert usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_time"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_demanded_tools(api: str, choice: Any, stream: bool) -> None:
    if api == "ollama_chat":
        pytest.skip("Ollama's API has no tool_choice")
    answer = ask(api, tools=TOOLS, tool_choice=choice, stream=stream, max_tokens=400)
    if stream:
        answer = litellm.stream_chunk_builder(list(answer))
    assert answer.choices[0].finish_reason == "tool_calls"
    calls = answer.choices[0].message.tool_calls
    for call in calls:
        assert json.loads(call.function.arguments)["city"] in ("Rome", "Paris")
    messages = [*QUESTION, answer.choices[0].message.model_dump()]
    messages += [
        {"role": "tool", "tool_call_id": call.id, "name": call.function.name, "content": "24"} for call in calls
    ]
    assert ask(api, messages, tools=TOOLS, tool_choice="none").choices[0].message.content


def test_tools_that_may_be_called(api: str) -> None:
    given = {} if api == "ollama_chat" else {"parallel_tool_calls": False}
    assert ask(api, tools=TOOLS, **given).choices[0].message.content


@pytest.mark.parametrize("form", [Person, "schema"])
def test_json_schema(api: str, form: Any) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "p", "schema": Person.model_json_schema(), "strict": True}}
    answer = ask(api, response_format=schema if form == "schema" else form, max_tokens=100)
    Person.model_validate_json(answer.choices[0].message.content)


@pytest.mark.parametrize("effort", ["none", "low", "high"])
def test_reasoning_effort(api: str, effort: str) -> None:
    given: dict[str, Any] = {"reasoning_effort": effort, "drop_params": True}
    answer = ask(api, **given, max_tokens=None if api == "anthropic" else 60)
    assert answer.choices[0].message.content


def test_sampling_options(api: str) -> None:
    given: dict[str, Any] = {"temperature": 0.9, "top_p": 0.9, "stop": ["!"], "drop_params": True}
    if api in ("openai", "hosted_vllm"):
        given |= {"seed": 7, "n": 2, "logprobs": True, "top_logprobs": 2, "user": "me", "logit_bias": {"5": -100}}
    answer = ask(api, metadata={"tags": ["x"]}, **given)
    assert len(answer.choices) == given.get("n", 1)


def test_responses(api: str) -> None:
    if api != "openai":
        pytest.skip("LiteLLM sends others as chats")
    answer = litellm.responses(input="What does sealed mean?", max_output_tokens=30, **APIS[api])
    assert answer.output[-1].content[0].text
    kinds = [event.type for event in litellm.responses(input="What?", stream=True, max_output_tokens=30, **APIS[api])]
    assert kinds[-1] in ("response.completed", "response.incomplete")


def test_text_completion() -> None:
    answer = litellm.text_completion(
        model="text-completion-openai/ingot-guide", api_base=f"{URL}/v1", api_key="none", prompt="What", max_tokens=5
    )
    assert answer.choices[0].text


def test_many_at_once(api: str) -> None:
    async def all_of_them() -> list[Any]:
        given = {"messages": QUESTION, "max_tokens": 20, "num_retries": 0, **APIS[api]}
        return await asyncio.gather(*(litellm.acompletion(**given) for _ in range(12)))

    assert len({answer.choices[0].message.content for answer in LOOP.run_until_complete(all_of_them())}) == 1


def test_refusals(api: str) -> None:
    with pytest.raises(litellm.exceptions.BadRequestError):
        ask(api, temperature=9)
    if api == "ollama_chat":
        return  # LiteLLM tells no other error of it apart
    with pytest.raises(litellm.exceptions.ContextWindowExceededError):
        ask(api, [{"role": "user", "content": "long " * 30_000}])
    with pytest.raises(litellm.exceptions.NotFoundError):
        litellm.completion(messages=QUESTION, **APIS[api] | {"model": APIS[api]["model"].split("/")[0] + "/other"})


@pytest.mark.parametrize("model", ["openai/ingot-guide", "ollama/ingot-guide"])
def test_embeddings(model: str) -> None:
    base = URL if model.startswith("ollama") else f"{URL}/v1"
    answer = litellm.embedding(model=model, api_base=base, api_key="none", input=["What is a cast?", "x"])
    assert len(answer.data) == 2
    assert answer.usage.prompt_tokens > 0
