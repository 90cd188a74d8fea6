"""A request of Ollama's API as one of /v1/chat/completions, or of /v1/completions where its prompt is raw."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from msgspec import structs

from appliance.serving import chat_request
from appliance.serving.answering import Ask
from appliance.serving.errors import PromptTooLongError, bad_request
from appliance.serving.field_origins import FieldOrigins
from appliance.serving.fields import Ignored, decode_part, shown
from appliance.serving.ollama.fields import GenerationFields, OllamaChatFields, OllamaGenerateFields, Options
from appliance.serving.ollama.messages import translate_messages
from appliance.serving.served_model import ServedModel
from appliance.serving.structured import JsonSchema, ResponseFormat

ORIGINS: Final = {
    "stop": "options.stop",
    "tools": "tools",
    "response_format": "format",
    "response_format.json_schema.schema": "format",
}


NUMBER: Final = r"(?:\d+(?:\.\d*)?|\.\d+)"
# As Go writes durations, or seconds.
DURATION: Final = re.compile(rf"[+-]?(?:{NUMBER}|(?:{NUMBER}(?:ns|us|µs|μs|ms|s|m|h))+)", re.ASCII)


class Translated(NamedTuple):
    """`origins` names a field of `chat` as the client did. `system` is the field of that name, which is a message of
    `chat`."""

    chat: chat_request.ChatFields
    origins: FieldOrigins
    system: str | None = None


def unloads(keep_alive: float | str | None) -> bool:
    """Whether it stands for no time at all. Raises ApiError if it is no duration."""
    if not isinstance(keep_alive, str):
        return keep_alive == 0
    if not DURATION.fullmatch(keep_alive):
        message = f'keep_alive: {shown(keep_alive)} is not valid; use a duration such as "5m", or a number of seconds.'
        raise bad_request(message, "keep_alive")
    return not any(digit in keep_alive for digit in "123456789")


def note_unload(keep_alive: float | str | None, ignored: Ignored) -> None:
    """Of a request that asks for more than that: it is answered, and the model stays. Raises ApiError if it is no
    duration."""
    if unloads(keep_alive):
        ignored.add_unused("keep_alive")


def check_load(fields: GenerationFields) -> None:
    """Of a request that asks for nothing, and so stands for the model itself. Raises ApiError."""
    if unloads(fields.keep_alive):
        message = "keep_alive: no request unloads the model; stop the engine in the console."
        raise bad_request(message, "keep_alive", "unsupported_field")


def translate_chat(fields: OllamaChatFields, max_model_len: int | None, ignored: Ignored) -> Translated:
    """Raises ApiError naming the field."""
    messages = translate_messages(fields.messages or [], ignored)
    return _translate(fields, messages, fields.tools, FieldOrigins(ORIGINS), max_model_len, ignored)


def translate_generate(fields: OllamaGenerateFields, max_model_len: int | None, ignored: Ignored) -> Translated:
    messages = [{"role": "user", "content": fields.prompt or ""}]
    if fields.system:
        messages.insert(0, {"role": "system", "content": fields.system})
    origins = FieldOrigins(ORIGINS | {"messages": "prompt"})
    return _translate(fields, messages, None, origins, max_model_len, ignored)._replace(system=fields.system)


async def generation_ask(translated: Translated, model: ServedModel, ignored: Ignored) -> Ask:
    """An answer for which the context has too little room is cut short. Raises ApiError."""
    unused = Ignored(strict=False)
    with translated.origins.in_errors():
        try:
            ask = await chat_request.chat_ask(translated.chat, model, unused, shorten=True)
        except PromptTooLongError:
            if (system := translated.system) is not None:
                await model.check_fits(system, "system")
            raise
    translated.origins.note(unused, ignored)
    return structs.replace(ask, form_param=ask.form_param and translated.origins.of(ask.form_param))


async def raw_ask(translated: Translated, prompt: str, model: ServedModel) -> Ask:
    """Of a prompt that is the model's as it stands."""
    chat = translated.chat
    with translated.origins.in_errors():
        token_ids = await model.encode(prompt, "prompt")
        room = model.room(len(token_ids), None, "prompt")
        form = chat_request.check_chat(chat, Ignored(strict=False)).form
        return Ask(
            prompts=[token_ids],
            fields=chat,
            max_tokens=[min(int(chat.max_tokens or model.sampling_defaults.get("max_tokens", room)), room)],
            grammar=await model.grammar(form) if form else None,
            form_param=translated.origins.of(form.param) if form else None,
        )


def _translate(
    fields: GenerationFields,
    messages: list[dict[str, Any]],
    tools: Any,
    origins: FieldOrigins,
    max_model_len: int | None,
    ignored: Ignored,
) -> Translated:
    note_unload(fields.keep_alive, ignored)
    options = decode_part(fields.options or {}, Options, "options", ignored)
    if options.num_ctx is not None and max_model_len is not None and options.num_ctx > max_model_len:
        ignored.add_unused("options.num_ctx")
    effort = fields.think if isinstance(fields.think, str) else None
    enabled = fields.think if isinstance(fields.think, bool) else None
    for field, value in (("reasoning_effort", effort), ("enable_thinking", enabled)):
        if value is not None:
            origins.add(field, "think")
    chat = chat_request.ChatFields(
        messages=messages,
        tools=tools,
        reasoning_effort=effort,
        enable_thinking=enabled,
        response_format=_response_format(fields.format),
        max_tokens=options.num_predict if options.num_predict and options.num_predict > 0 else None,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        seed=None if options.seed == -1 else options.seed,  # its default, which stands for any
        stop=options.stop,
        repetition_penalty=options.repeat_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        cache_salt=fields.cache_salt,
        priority=fields.priority,
    )
    return Translated(chat, origins)


def _response_format(form: Any) -> ResponseFormat | None:
    if form is None or form == "":
        return None
    if form == "json":
        return ResponseFormat(type="json_object")
    if isinstance(form, dict):
        return ResponseFormat(type="json_schema", json_schema=JsonSchema(schema=form))
    raise bad_request(f'format: {shown(form)} is not valid; use "json" or a JSON schema.', "format")
