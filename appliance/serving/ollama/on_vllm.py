"""Ollama's API over vLLM, which does not have it: requests become those of its OpenAI API, and its streams answers."""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from litestar import Request, Response

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.json_file import read_object
from appliance.core_protocol import FinishReason
from appliance.engine_process.errors import EngineGoneError, TooManyRequestsError
from appliance.serving.answering import unless_gone
from appliance.serving.chat_request import ChatFields
from appliance.serving.choice import Piece
from appliance.serving.error_shape import read_error
from appliance.serving.errors import ApiError, engine_gone, not_ready, not_with_model
from appliance.serving.field_origins import FieldOrigins
from appliance.serving.fields import Ignored
from appliance.serving.messages import check_messages
from appliance.serving.ollama import models
from appliance.serving.ollama.answer import Figures, GenerationAnswer, timestamp
from appliance.serving.parsers.base import CallDelta
from appliance.serving.respond import Answered
from appliance.serving.stream import FrameStream, encode, ending_in_error
from appliance.vllm.http import NO_ROUTE, Answer, UpstreamGoneError

if TYPE_CHECKING:
    from appliance.serving.front_door import FrontDoor
    from appliance.vllm.launch import VllmLaunch

HEADERS: Final = [(b"content-type", b"application/json")]
# vLLM has these under the names that the native engine has.
PASSED_ON: Final = (
    "max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "stop", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "cache_salt", "priority",
)  # fmt: skip
OF_MESSAGES: Final = ("tools", "reasoning_effort")
TO_CONTEXT_END: Final = -1  # as `truncate_prompt_tokens`: what the context holds
END: Final = b"[DONE]"


class VllmModel(NamedTuple):
    """What is known of the model that vLLM serves."""

    name: str
    created: int
    max_model_len: int | None
    folder: Path
    strict_requests: bool
    calls_tools: bool
    reasons: bool

    @property
    def family(self) -> str:
        return _family(self.folder)

    @property
    def listed(self) -> dict[str, Any]:
        """An entry of /api/tags."""
        entry = models.bare(self.name, self.created)
        named = {"family": self.family, "families": [self.family], "format": "safetensors"}
        return {**entry, "details": entry["details"] | named}

    @property
    def running(self) -> dict[str, Any]:
        """An entry of /api/ps."""
        entry = {name: value for name, value in self.listed.items() if name != "modified_at"}
        return {**entry, "expires_at": models.NEVER, "size_vram": 0, "context_length": self.max_model_len or 0}

    @property
    def shown(self) -> dict[str, Any]:
        """The answer of /api/show."""
        found = {"completion": True, "tools": self.calls_tools, "thinking": self.reasons}
        info: dict[str, Any] = {"general.architecture": self.family, "general.basename": self.name}
        if self.max_model_len is not None:
            info[f"{self.family}.context_length"] = self.max_model_len
        return {
            "modelfile": f"FROM {models.tagged(self.name)}",
            "parameters": "",
            "template": "",
            "details": self.listed["details"],
            "model_info": info,
            "capabilities": [name for name, has in found.items() if has],
            "modified_at": timestamp(self.created),
        }


def serving(front_door: FrontDoor) -> tuple[VllmLaunch, VllmModel]:
    """Raises ApiError (503) when vLLM is not ready."""
    supervisor = front_door.supervisor
    launch, plan = supervisor.vllm, supervisor.plan
    if launch is None or launch.served is None or plan is None:
        raise not_ready(supervisor.state, supervisor.reason, supervisor.drain_until)
    arguments = plan.profile.vllm.extra_args
    model = VllmModel(
        name=launch.served.name,
        created=launch.served.created,
        max_model_len=launch.served.max_model_len,
        folder=plan.folder,
        strict_requests=plan.profile.strict_requests,
        calls_tools=bool(arguments.get("enable-auto-tool-choice")),
        reasons="reasoning-parser" in arguments,
    )
    return launch, model


@functools.cache
def _family(folder: Path) -> str:
    """As config.json names it; "" where that cannot be read, as vLLM runs models that have none."""
    try:
        return str(read_object(folder / "config.json", "config").get("model_type", ""))
    except CheckpointError:
        return ""


def chat_content(chat: ChatFields, model: VllmModel, origins: FieldOrigins) -> dict[str, Any]:
    """A request of /v1/chat/completions. Raises ApiError naming the client's field."""
    with origins.in_errors():
        messages = check_messages(chat.messages, Ignored(strict=False))
    content = {**_content(chat, model), "messages": [_message(message) for message in messages]}
    content |= {name: value for name in OF_MESSAGES if (value := getattr(chat, name)) is not None}
    if chat.enable_thinking is not None:
        content["chat_template_kwargs"] = {"enable_thinking": chat.enable_thinking}
    return content


async def raw_content(launch: VllmLaunch, chat: ChatFields, prompt: str, model: VllmModel) -> dict[str, Any]:
    """A request of /v1/completions. Without a limit its answers have 16 tokens, so that the rest of the context is
    named: vLLM counts the prompt. Raises ApiError."""
    content = {**_content(chat, model), "prompt": prompt}
    if "max_tokens" not in content and model.max_model_len is not None:
        counted = await _fetch(launch, "/tokenize", {"model": model.name, "prompt": prompt})
        content["max_tokens"] = max(model.max_model_len - counted["count"], 1)  # vLLM itself refuses a longer prompt
    return content


async def answered(
    request: Request[Any, Any, Any],
    front_door: FrontDoor,
    path: str,
    content: dict[str, Any],
    answer: GenerationAnswer,
    *,
    stream: bool,
    origins: FieldOrigins,
    headers: dict[str, str],
) -> Answered:
    """vLLM's answer to `content`, whose fields `origins` names as the client did."""
    launch, _ = serving(front_door)
    with origins.in_errors():
        generation = await unless_gone(request, _begun(launch, front_door, path, content))
    if stream:
        lines = ending_in_error(_lines(generation, answer), answer.error_frame)
        return FrameStream(lines, answer.media_type, headers)
    try:
        whole = await unless_gone(request, generation.whole())
    finally:
        generation.close()
    body = encode(answer.put_together(whole, generation.figures))
    return Response(body, media_type="application/json", headers=headers)


async def embed(
    launch: VllmLaunch,
    model: VllmModel,
    texts: list[str],
    *,
    truncate: bool = True,
    dimensions: int | None = None,
    cache_salt: str | None = None,
) -> tuple[list[list[float]], int]:
    """A vector for each text, and how many tokens they have. Raises ApiError."""
    content: dict[str, Any] = {"model": model.name, "input": texts, "encoding_format": "float"}
    content |= {"truncate_prompt_tokens": TO_CONTEXT_END} if truncate else {}
    content |= {"dimensions": dimensions} if dimensions is not None else {}
    content |= {"cache_salt": cache_salt} if cache_salt is not None else {}
    told = await _fetch(launch, "/v1/embeddings", content)
    vectors = sorted(told["data"], key=lambda each: int(each["index"]))
    return [each["embedding"] for each in vectors], told["usage"]["prompt_tokens"]


class Generation:
    """One answer of vLLM, read from its stream. `close` it, whatever happens."""

    def __init__(self, launch: VllmLaunch, front_door: FrontDoor, answer: Answer, began: float) -> None:
        self._launch = launch
        self._metrics = front_door.metrics
        self._answer = answer
        self._began = began
        self._ended = False
        self._first_token_at: float | None = None
        self._usage: dict[str, int] = {}

    @property
    def figures(self) -> Figures:
        tokens = self._usage.get("completion_tokens", 0)
        return Figures(self._first_token_at, self._usage.get("prompt_tokens", 0), tokens)

    async def whole(self) -> Piece:
        whole = Piece()
        async for piece in self.pieces():
            whole.add(piece)
        return whole

    async def pieces(self) -> AsyncIterator[Piece]:
        """What ends it comes last, when the figures are known. Raises ApiError."""
        reason = FinishReason.STOP
        try:
            async for told in _events(self._answer):
                if "error" in told:
                    raise read_error(int(told["error"].get("code") or 500), encode(told))
                self._usage = told.get("usage") or self._usage
                for choice in told["choices"]:
                    self._note_first_token()
                    yield _piece(choice)
                    reason = FinishReason.LENGTH if choice.get("finish_reason") == "length" else reason
        except UpstreamGoneError as error:
            raise engine_gone(str(await self._launch.client.gone(error))) from None
        self._ended = True
        self._metrics.request_time.observe(time.perf_counter() - self._began)
        yield Piece(finish_reason=reason)

    def close(self) -> None:
        self._launch.client.release(self._answer)
        if not self._ended:
            self._metrics.aborts.inc()

    def _note_first_token(self) -> None:
        if self._first_token_at is None:
            self._first_token_at = time.perf_counter()
            self._metrics.first_token.observe(self._first_token_at - self._began)


async def _begun(launch: VllmLaunch, front_door: FrontDoor, path: str, content: dict[str, Any]) -> Generation:
    began = time.perf_counter()
    whole = {**content, "stream": True, "stream_options": {"include_usage": True}}
    return Generation(launch, front_door, await _ask(launch, path, whole), began)


async def _ask(launch: VllmLaunch, path: str, content: dict[str, Any]) -> Answer:
    """An answer that has begun well; to be released. Raises ApiError."""
    try:
        answer = await launch.client.ask("POST", path.encode(), HEADERS, encode(content))
    except TooManyRequestsError as error:
        message = f"Too many requests: {error}."
        raise ApiError(429, message, code="too_many_requests", headers={"Retry-After": "1"}) from None
    except EngineGoneError as error:
        raise engine_gone(str(error)) from None
    try:
        await answer.head()
        if answer.status != 200:
            body = await _body(answer)
            raise not_with_model(path) if body == NO_ROUTE else read_error(answer.status, body)
    except UpstreamGoneError as error:
        launch.client.release(answer)
        raise engine_gone(str(await launch.client.gone(error))) from None
    except BaseException:
        launch.client.release(answer)
        raise
    return answer


async def _fetch(launch: VllmLaunch, path: str, content: dict[str, Any]) -> Any:
    """A whole answer. Raises ApiError."""
    answer = await _ask(launch, path, content)
    try:
        return msgspec.json.decode(await _body(answer))
    except UpstreamGoneError as error:
        raise engine_gone(str(await launch.client.gone(error))) from None
    finally:
        launch.client.release(answer)


async def _lines(generation: Generation, answer: GenerationAnswer) -> AsyncIterator[bytes]:
    try:
        async for line in answer.lines(generation.pieces(), lambda: generation.figures):
            yield line
    finally:
        generation.close()


async def _body(answer: Answer) -> bytes:
    return b"".join([piece async for piece in answer.pieces()])


async def _events(answer: Answer) -> AsyncIterator[dict[str, Any]]:
    """The objects of a stream of events, up to its end."""
    held = b""
    async for piece in answer.pieces():
        *frames, held = (held + piece).split(b"\n\n")
        for frame in frames:
            data = frame.removeprefix(b"data:").strip()
            if data == END:
                return
            if frame.startswith(b"data:"):
                yield msgspec.json.decode(data)


def _content(chat: ChatFields, model: VllmModel) -> dict[str, Any]:
    """What requests for messages and for a prompt have in common."""
    content = {name: value for name in PASSED_ON if (value := getattr(chat, name)) is not None}
    if model.max_model_len is not None and content.get("max_tokens", 0) >= model.max_model_len:
        del content["max_tokens"]  # vLLM refuses more than there is room for
    if chat.response_format is not None:
        form = chat.response_format
        content["response_format"] = {"type": form.type}
        if form.json_schema is not None:
            schema = {"name": "answer", "schema": form.json_schema.schema}  # vLLM wants a name
            content["response_format"]["json_schema"] = schema
    return {**content, "model": model.name}


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """With arguments as texts, as OpenAI has them."""
    if "tool_calls" not in message:
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": encode(call["function"]["arguments"]).decode()}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _piece(choice: dict[str, Any]) -> Piece:
    """Of a choice of either API."""
    delta = choice.get("delta") or {"content": choice.get("text")}
    calls = [
        CallDelta(
            index=call["index"],
            name=call.get("function", {}).get("name"),
            arguments=call.get("function", {}).get("arguments") or "",
            id=call.get("id") or "",
        )
        for call in delta.get("tool_calls") or ()
    ]
    reasoning = delta.get("reasoning") or delta.get("reasoning_content") or ""
    return Piece(text=delta.get("content") or "", reasoning=reasoning, calls=calls)
