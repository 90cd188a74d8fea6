"""LlamaIndex: its model and embeddings for servers like OpenAI's. Runs in its own venv."""

import asyncio
import os
from typing import Any, Literal

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

URL = f"{os.environ['INGOT_URL']}/v1"
QUESTION = "What does sealed mean?"
LOOP = asyncio.new_event_loop()
MODEL = OpenAILike(
    "ingot-guide", api_base=URL, api_key="none", is_chat_model=True, is_function_calling_model=True, max_retries=0,
    max_tokens=100, context_window=16_384, should_use_structured_outputs=True,
)  # fmt: skip


class Person(BaseModel):
    name: Literal["Ann", "Bob"]
    age: Literal[30, 40]


def get_time(zone: Literal["UTC", "CET"]) -> str:
    """The time in a zone."""
    return "12:00"


def test_whole_and_streamed() -> None:
    messages = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content=QUESTION)]
    whole = MODEL.chat(messages)
    assert whole.message.content
    assert list(MODEL.stream_chat(messages))[-1].message.content == whole.message.content
    assert MODEL.complete(QUESTION).text == "".join(part.delta for part in MODEL.stream_complete(QUESTION))


def test_tools() -> None:
    tool = FunctionTool.from_defaults(get_time)
    assert MODEL.predict_and_call([tool], QUESTION, tool_required=True).response == "12:00"
    answer = MODEL.chat_with_tools([tool], QUESTION, tool_required=True)
    assert MODEL.get_tool_calls_from_response(answer)[0].tool_name == "get_time"


def test_structured_output() -> None:
    answer: Any = MODEL.as_structured_llm(Person).complete(QUESTION)
    assert isinstance(answer.raw, Person)


def test_an_agent() -> None:
    async def ask() -> Any:
        return await FunctionAgent(tools=[get_time], llm=MODEL, system_prompt="Be brief.").run(QUESTION)

    assert LOOP.run_until_complete(ask()).response.content


def test_embeddings() -> None:
    model = OpenAILikeEmbedding(model_name="ingot-guide", api_base=URL, api_key="none", max_retries=0)
    assert len(model.get_text_embedding_batch([QUESTION, "What is a cast?"])) == 2
    assert model.get_query_embedding(QUESTION)
