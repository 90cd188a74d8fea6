"""`POST /v1/chat/completions`: messages through the model's own template."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from litestar import Request, Response, post
from litestar.response import Stream
from msgspec import Meta

from appliance.protocol import TokenLogprob
from appliance.serving.access import key_of
from appliance.serving.answer_format import TokenTexts, new_id, usage
from appliance.serving.answering import Answering, Ask
from appliance.serving.choice import Choice, Piece
from appliance.serving.errors import bad_request
from appliance.serving.fields import Ignored, decode_request, read_body
from appliance.serving.front_door import FrontDoor
from appliance.serving.message_form import chat_finish_reason, delta, message
from appliance.serving.messages import check_messages, with_short_ids
from appliance.serving.respond import respond
from appliance.serving.sampling import SamplingFields, check_logprobs
from appliance.serving.served_model import ServedModel
from appliance.serving.stream import DONE, HEARTBEAT, frame
from appliance.serving.structured import enforced_form, wanted_form
from appliance.serving.thinking import thinking_variables
from appliance.serving.tools import ToolUse, check_tools


class ChatFields(SamplingFields, frozen=True, kw_only=True):
    messages: list[dict[str, Any]]
    max_completion_tokens: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    include_reasoning: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


@post("/v1/chat/completions", status_code=200)
async def chat_completions(request: Request[Any, Any, Any], front_door: FrontDoor) -> Stream | Response[dict[str, Any]]:
    client, model = front_door.serving()
    fields, ignored = decode_request(await read_body(request), ChatFields, strict=model.strict_requests)
    model.check_name(fields.model)
    ask = await _ask(fields, model, ignored)
    answering = Answering(client, model, front_door.metrics, ask, key_of(request))
    answer = ChatAnswer(model, ask, fields)
    return await respond(request, answering, answer, stream=fields.stream, headers=ignored.headers)


async def _ask(fields: ChatFields, model: ServedModel, ignored: Ignored) -> Ask:
    check_logprobs(fields.top_logprobs, "top_logprobs")
    if fields.top_logprobs and not fields.logprobs:
        raise bad_request("top_logprobs needs logprobs; set logprobs to true.", "top_logprobs")
    use = check_tools(fields.tools, fields.tool_choice, fields.parallel_tool_calls, ignored)
    form = enforced_form(use, wanted_form(fields))
    text = await _render(fields, model, use, ignored)
    # The template writes the special tokens itself.
    prompt = await model.encode(text, "messages", add_special_tokens=False)
    if not prompt:
        raise bad_request("The model's chat template produces an empty prompt for these messages.", "messages")
    asked = fields.max_completion_tokens or fields.max_tokens
    room = model.room(len(prompt), asked, "messages")
    wanted = asked or model.sampling_defaults.get("max_tokens", room)
    return Ask(
        prompts=[prompt],
        fields=fields,
        max_tokens=[min(int(wanted), room)],
        logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
        grammar=await model.grammar(form, model.formats.thoughts(text)) if form else None,
        reading=model.formats.reading(text, use),
    )


async def _render(fields: ChatFields, model: ServedModel, use: ToolUse, ignored: Ignored) -> str:
    """The prompt's text."""
    messages = check_messages(fields.messages, ignored)
    given = fields.chat_template_kwargs or {}
    for name in ("messages", "tools"):
        if name in given:
            raise bad_request(f"chat_template_kwargs.{name} is reserved. Remove it.", f"chat_template_kwargs.{name}")
    template = model.template
    if use.tools and "tools" not in template.variables:
        ignored.add_unused("tools")
    if template.wants_short_ids:
        messages = with_short_ids(messages)
    variables = thinking_variables(fields.reasoning_effort, fields.enable_thinking, given, template, ignored)
    variables.setdefault("add_generation_prompt", fields.add_generation_prompt is not False)
    return await model.render_chat(messages, {**variables, "tools": use.for_template()})


class ChatAnswer:
    """Writes answers in the form of /v1/chat/completions."""

    def __init__(self, model: ServedModel, ask: Ask, fields: ChatFields) -> None:
        self._ask = ask
        self._fields = fields
        self._texts = TokenTexts(model)
        self._id = new_id("chatcmpl")
        self._created = int(time.time())
        self._model = model.name
        self._include_reasoning = fields.include_reasoning is not False

    def whole(self, choices: list[Choice], pieces: list[Piece]) -> dict[str, Any]:
        written = []
        for choice, piece in zip(choices, pieces, strict=True):
            whole = message(piece, include_reasoning=self._include_reasoning)
            written.append(self._choice(choice, piece, message=whole))
        extra = {"prompt_token_ids": self._ask.prompts[0]} if self._fields.return_token_ids else {}
        spent = usage(self._ask.prompts, choices)
        return {**self._head("chat.completion"), "choices": written, "usage": spent, **extra}

    async def frames(self, answering: Answering) -> AsyncIterator[bytes]:
        try:
            choices = answering.choices
            head = self._head("chat.completion.chunk")
            no_usage = {"usage": None} if self._fields.include_usage else {}
            begun: set[int] = set()
            async for came in answering.pieces():
                if came is None:
                    yield HEARTBEAT
                    continue
                choice, piece = came
                gained = delta(piece, include_reasoning=self._include_reasoning)
                extra: dict[str, Any] = {}
                if choice.index not in begun:
                    gained = {"role": "assistant", "content": "", **gained}
                    if self._fields.return_token_ids and not begun:
                        extra = {"prompt_token_ids": self._ask.prompts[0]}
                begun.add(choice.index)
                if gained or piece.finish_reason or self._tells_tokens:
                    yield frame({**head, "choices": [self._choice(choice, piece, delta=gained)], **no_usage, **extra})
            if self._fields.include_usage:
                yield frame({**head, "choices": [], "usage": usage(self._ask.prompts, choices)})
            yield DONE
        finally:
            answering.close()

    @property
    def _tells_tokens(self) -> bool:
        """Whether frames say something of their tokens, also of those that add no text."""
        return self._ask.logprobs is not None or bool(self._fields.return_token_ids)

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _choice(self, choice: Choice, piece: Piece, **content: Any) -> dict[str, Any]:
        """`content` is a whole message or the delta of one."""
        told = self._ask.logprobs is not None
        written = {
            "index": choice.index,
            **content,
            "logprobs": {"content": [self._logprob(entry) for entry in piece.logprobs]} if told else None,
            "finish_reason": chat_finish_reason(choice, piece),
        }
        if self._fields.return_token_ids:
            written["token_ids"] = piece.token_ids
        return written

    def _logprob(self, entry: TokenLogprob) -> dict[str, Any]:
        top = [self._token(token_id, logprob) for token_id, logprob in entry.top]
        return {**self._token(entry.token_id, entry.logprob), "top_logprobs": top}

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self._texts(token_id)
        # Part of a character has no text of its own, and its bytes are not known here.
        known = "\ufffd" not in text
        written = {"token": text, "logprob": logprob, "bytes": list(text.encode()) if known else None}
        # Several tokens may have the same text: include the id, so that clients can compare tokens.
        return {**written, "token_id": token_id} if self._fields.return_token_ids else written
