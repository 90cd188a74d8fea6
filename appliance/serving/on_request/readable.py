"""Whether a request could be answered at all, before the model it names replaces the running one: what its route says
of it before any model is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, NamedTuple

from appliance.serving.anthropic.fields import MESSAGES, MessagesFields
from appliance.serving.anthropic.request import translate as translate_anthropic
from appliance.serving.body import beside_others
from appliance.serving.chat_request import ChatFields, check_chat
from appliance.serving.completions import CompletionFields, check_completion
from appliance.serving.embeddings import VOCABULARY, EmbeddingFields, check_input
from appliance.serving.fields import OPENAI, Ignored, Vocabulary, decode_request
from appliance.serving.messages import check_messages
from appliance.serving.ollama.embed import OllamaEmbeddingsFields, OllamaEmbedFields, check_embed
from appliance.serving.ollama.fields import OLLAMA, OllamaChatFields, OllamaGenerateFields
from appliance.serving.ollama.request import check_load, translate_chat, translate_generate
from appliance.serving.reading import ModelFormats
from appliance.serving.responses.fields import ResponseFields
from appliance.serving.responses.request import check_response, errors_of_response
from appliance.serving.responses.store import ResponseStore, StoredItems
from appliance.serving.structured import CheckedGrammars, Form, binds_strict
from appliance.serving.tools import ToolUse

ReadFormats = Callable[[], ModelFormats | None]
NO_TOOLS: Final = ToolUse()


class Asker(NamedTuple):
    """What a request may refer to: the answers kept for the API key with this id."""

    store: ResponseStore
    key_id: str


class Wanted(NamedTuple):
    """The form of the answer, if it is to have one, and the tools that it may call. Errors about them are the client's
    within `in_errors()`."""

    form: Form | None = None
    use: ToolUse = NO_TOOLS
    in_errors: Callable[[], AbstractContextManager[None]] = nullcontext

    def forms(self, read_formats: ReadFormats) -> list[Form]:
        """To be tried: of a free answer, those of strict tools' arguments, where the model's calls can be bound."""
        if self.form is not None:
            return [self.form]
        if not any(tool.strict for tool in self.use.callable):
            return []
        formats = read_formats()
        if formats is None or not binds_strict(self.use, formats):
            return []
        return [Form("json_schema", schema, place) for place, schema in self.use.parameter_schemas()]


class Route(NamedTuple):
    fields: type[Any]
    vocabulary: Vocabulary
    check: Callable[[Any, Ignored, Asker], Wanted]
    """Raises ApiError as the route does."""
    reads_store: bool = False
    """However short a request is, what it refers to may be long."""


async def check_readable(
    path: str, body: bytes, asker: Asker, grammars: CheckedGrammars, read_formats: ReadFormats, *, strict: bool
) -> None:
    """Raises ApiError as the route will. `read_formats`: of the model, None where its folder cannot be read. `strict`:
    whether its profile refuses unknown fields. What only its own tokenizer or template can tell is left to them."""
    route = ROUTES[path]

    def check() -> Wanted:
        fields, ignored = decode_request(body, route.fields, strict=strict, api=route.vocabulary)
        return route.check(fields, ignored, asker)

    in_thread = route.reads_store and asker.store.is_on
    wanted = await (asyncio.to_thread(check) if in_thread else beside_others(body, check))
    if wanted == Wanted():
        return
    forms = await asyncio.to_thread(wanted.forms, read_formats)
    with wanted.in_errors():
        for form in forms:
            await grammars.check(form, ())


def _check_chat(fields: ChatFields, ignored: Ignored, _asker: Asker) -> Wanted:
    from appliance.checkpoint.encoders import known_message_fields  # late: the first answer does not wait for it

    checked = check_chat(fields, ignored)
    check_messages(fields.messages, ignored, known_message_fields())
    return Wanted(checked.form, checked.use)


def _check_anthropic(fields: MessagesFields, ignored: Ignored, asker: Asker) -> Wanted:
    translated = translate_anthropic(fields, ignored)
    with translated.origins.in_errors():
        wanted = _check_chat(translated.chat, ignored, asker)
        return wanted._replace(in_errors=translated.origins.in_errors)


def _check_ollama(fields: OllamaChatFields | OllamaGenerateFields, ignored: Ignored, asker: Asker) -> Wanted:
    if isinstance(fields, OllamaChatFields):
        translated, asks = translate_chat(fields, None, ignored), bool(fields.messages)
    else:
        translated, asks = translate_generate(fields, None, ignored), bool(fields.prompt)
    if not asks:
        check_load(fields)
        return Wanted()
    with translated.origins.in_errors():
        wanted = _check_chat(translated.chat, ignored, asker)
        return wanted._replace(in_errors=translated.origins.in_errors)


def _check_response(fields: ResponseFields, ignored: Ignored, asker: Asker) -> Wanted:
    checked = check_response(fields, StoredItems(asker.store, asker.key_id), ignored)
    return Wanted(checked.form, checked.use, lambda: errors_of_response(fields))


def _check_completion(fields: CompletionFields, *_: object) -> Wanted:
    return Wanted(check_completion(fields))


def _check_embeddings(fields: EmbeddingFields, *_: object) -> Wanted:
    check_input(fields.input)
    return Wanted()


def _check_embed(fields: OllamaEmbedFields | OllamaEmbeddingsFields, ignored: Ignored, _asker: Asker) -> Wanted:
    check_embed(fields, ignored)
    return Wanted()


ROUTES: Final[dict[str, Route]] = {
    "/v1/chat/completions": Route(ChatFields, OPENAI, _check_chat),
    "/v1/completions": Route(CompletionFields, OPENAI, _check_completion),
    "/v1/responses": Route(ResponseFields, OPENAI, _check_response, reads_store=True),
    "/v1/messages": Route(MessagesFields, MESSAGES, _check_anthropic),
    "/v1/embeddings": Route(EmbeddingFields, VOCABULARY, _check_embeddings),
    "/api/chat": Route(OllamaChatFields, OLLAMA, _check_ollama),
    "/api/generate": Route(OllamaGenerateFields, OLLAMA, _check_ollama),
    "/api/embed": Route(OllamaEmbedFields, OLLAMA, _check_embed),
    "/api/embeddings": Route(OllamaEmbeddingsFields, OLLAMA, _check_embed),
}
