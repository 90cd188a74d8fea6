"""LangChain: its models of OpenAI (by both APIs), Anthropic and Ollama, and agents. Runs in its own venv."""

import asyncio
import os
from typing import Any, Literal

import pytest
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

URL = os.environ["INGOT_URL"]
NAME = "ingot-guide"
LOOP = asyncio.new_event_loop()  # one, as the clients keep their connections
QUESTION = "What does sealed mean?"
PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAACAkQBADs="
MODELS = {
    "openai": lambda **given: ChatOpenAI(
        base_url=f"{URL}/v1", api_key="none", model=NAME, max_retries=0, stream_usage=True, **given
    ),
    "openai-responses": lambda **given: ChatOpenAI(
        base_url=f"{URL}/v1", api_key="none", model=NAME, max_retries=0, use_responses_api=True, **given
    ),
    "anthropic": lambda **given: ChatAnthropic(
        base_url=URL, api_key="none", model=NAME, max_retries=0, **{"max_tokens": 200, **given}
    ),
    "ollama": lambda **given: ChatOllama(
        base_url=URL,
        model=NAME,
        **{{"max_tokens": "num_predict"}.get(name, name): each for name, each in given.items()},
    ),
}


@pytest.fixture(params=MODELS)
def api(request: Any) -> str:
    return request.param


@pytest.fixture
def make(api: str) -> Any:
    return MODELS[api]


class Person(BaseModel):
    """A person."""

    # Anthropic's client leaves limits of texts and numbers out of the schema that it sends.
    name: Literal["Ann", "Bob"]
    age: Literal[30, 40]
    kind: Literal["a", "b"]


@tool
def get_weather(city: Literal["Rome", "Paris"], unit: Literal["C", "F"] = "C") -> str:
    """The weather of a place."""
    return f"24 {unit} in {city}"


@tool
def get_time(zone: Literal["UTC", "CET"]) -> str:
    """The time in a zone."""
    return "12:00"


def test_whole_and_streamed(make: Any) -> None:
    model = make(max_tokens=60)
    whole = model.invoke(QUESTION)
    assert whole.text
    assert whole.usage_metadata["input_tokens"] > 0
    assert whole.usage_metadata["output_tokens"] > 0
    chunks = list(model.stream(QUESTION))
    together = chunks[0]
    for chunk in chunks[1:]:
        together += chunk
    assert together.text == whole.text
    assert len(chunks) > 5
    assert together.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]


def test_batch(make: Any) -> None:
    answers = make(max_tokens=8).batch([QUESTION, "What is a cast?", "What is a bundle?"] * 3)
    assert all(answer.text for answer in answers)
    assert answers[0].text == answers[3].text


async def ask(model: Any) -> str:
    return "".join([chunk.text async for chunk in model.astream(QUESTION)])


def test_async(make: Any) -> None:
    assert LOOP.run_until_complete(ask(make(max_tokens=8)))


def test_a_conversation_with_system_and_results(make: Any) -> None:
    call = {"name": "get_weather", "args": {"city": "Rome"}, "id": "call_1"}
    other = {"name": "get_time", "args": {"zone": "UTC"}, "id": "call_2"}
    messages = [
        SystemMessage("Be brief."),
        HumanMessage([{"type": "text", "text": "The weather and the time?"}, {"type": "text", "text": "In Rome."}]),
        AIMessage("", tool_calls=[call, other]),
        ToolMessage([{"type": "text", "text": "24"}, {"type": "text", "text": " C"}], tool_call_id="call_1"),
        ToolMessage("12:00", tool_call_id="call_2"),
    ]
    bound = make(max_tokens=8).bind_tools([get_weather, get_time])
    assert bound.invoke(messages).text
    assert make(max_tokens=8).invoke([*messages, AIMessage("24 C, noon"), HumanMessage("Thanks")]).text


def test_a_long_history(make: Any) -> None:
    turns = [HumanMessage("one more"), AIMessage("well")] * 150
    assert make(max_tokens=4).invoke([*turns, HumanMessage(QUESTION)]).text


@pytest.mark.parametrize("choice", ["any", "get_weather"])
def test_demanded_tools(make: Any, api: str, choice: str) -> None:
    if api == "ollama":
        pytest.skip("Ollama's API has no tool_choice")
    bound = make(max_tokens=100).bind_tools([get_weather, get_time], tool_choice=choice)
    answer = bound.invoke(QUESTION)
    assert answer.tool_calls
    assert not answer.invalid_tool_calls
    together = None
    for chunk in bound.stream(QUESTION):
        together = chunk if together is None else together + chunk
    assert [call["args"] for call in together.tool_calls] == [call["args"] for call in answer.tool_calls]


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
@pytest.mark.parametrize("schema", [Person, Person.model_json_schema()])
def test_structured_output(make: Any, api: str, method: str, schema: Any) -> None:
    if (api, method) in (("anthropic", "json_mode"), ("ollama", "function_calling")):
        pytest.skip("not of this API")
    if method == "json_mode":
        pytest.skip("any JSON, which the bundled model does not end")
    model = make(max_tokens=200).with_structured_output(schema, method=method, include_raw=True)
    answer = model.invoke(QUESTION)
    assert answer["parsing_error"] is None, answer
    Person.model_validate(answer["parsed"] if isinstance(schema, dict) else answer["parsed"].model_dump())


def test_strict_structured_output_with_tools() -> None:
    model = MODELS["openai"](max_tokens=200)
    bound = model.bind_tools([get_time], strict=True, response_format=Person, tool_choice="none")
    assert Person.model_validate_json(bound.invoke(QUESTION).text)


def test_an_agent(make: Any, api: str) -> None:
    agent = create_agent(make(max_tokens=30), [get_weather, get_time], system_prompt="Be brief.")
    assert agent.invoke({"messages": [HumanMessage(QUESTION)]})["messages"][-1].text
    updates = list(agent.stream({"messages": [HumanMessage(QUESTION)]}, stream_mode="messages"))
    assert updates


def test_an_agent_with_an_answer_format(make: Any, api: str) -> None:
    if api == "ollama":
        pytest.skip("by a tool that is demanded, which Ollama's API cannot")
    from langchain.agents.structured_output import ProviderStrategy, ToolStrategy

    kinds = (ToolStrategy,) if api == "anthropic" else (ToolStrategy, ProviderStrategy)
    for kind in kinds:
        agent = create_agent(
            make(max_tokens=200), [get_time] if kind is not ToolStrategy else [], response_format=kind(Person)
        )
        answer = agent.invoke({"messages": [HumanMessage(QUESTION)]})
        assert isinstance(answer["structured_response"], Person)


def test_sampling_options() -> None:
    model = MODELS["openai"](
        max_tokens=8, temperature=1.2, seed=7, n=2, logprobs=True, top_logprobs=3, stop=["\n", "!"], top_p=0.9,
        presence_penalty=0.1, frequency_penalty=0.1, logit_bias={5: -100}, reasoning_effort="low", service_tier="auto",
        metadata={"a": "b"},
    )  # fmt: skip
    result = model.generate([[HumanMessage(QUESTION)]])
    assert len(result.generations[0]) == 2
    assert result.generations[0][0].message.response_metadata["logprobs"]["content"]
    again = model.generate([[HumanMessage(QUESTION)]])
    assert [each.text for each in again.generations[0]] == [each.text for each in result.generations[0]]


def test_refusals(make: Any, api: str) -> None:
    with pytest.raises(Exception, match=r"type|images") as refused:
        make().invoke([HumanMessage([{"type": "image_url", "image_url": {"url": PIXEL}}])])
    assert getattr(refused.value, "status_code", None) == 400
    with pytest.raises(Exception, match="temperature") as unknown:
        make(temperature=9).invoke(QUESTION)
    assert getattr(unknown.value, "status_code", None) == 400


def test_embeddings() -> None:
    """Texts, as LangChain sends token ids of OpenAI's vocabulary otherwise."""
    openai = OpenAIEmbeddings(
        base_url=f"{URL}/v1", api_key="none", model=NAME, check_embedding_ctx_length=False, max_retries=0
    )
    by_ollama = OllamaEmbeddings(base_url=URL, model=NAME)
    texts = [QUESTION, "What is a cast?"]
    for one, other in zip(openai.embed_documents(texts), by_ollama.embed_documents(texts), strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    assert openai.embed_query(QUESTION) == pytest.approx(openai.embed_documents(texts)[0], abs=1e-5)
    cut = OpenAIEmbeddings(
        base_url=f"{URL}/v1", api_key="none", model=NAME, dimensions=16, check_embedding_ctx_length=False
    )
    assert len(cut.embed_query(QUESTION)) == 16
