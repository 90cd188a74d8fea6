"""Whether a request says what its API needs, before the model it names replaces the running one."""

from __future__ import annotations

from typing import Any, Final

from appliance.serving import embeddings
from appliance.serving.anthropic.fields import MESSAGES, MessagesFields
from appliance.serving.body import beside_others
from appliance.serving.chat_request import ChatFields, check_without_model
from appliance.serving.completions import CompletionFields
from appliance.serving.fields import OPENAI, Vocabulary, decode_request
from appliance.serving.ollama.embed import OllamaEmbeddingsFields, OllamaEmbedFields
from appliance.serving.ollama.fields import OLLAMA, OllamaChatFields, OllamaGenerateFields
from appliance.serving.responses.fields import ResponseFields

FIELDS: Final[dict[str, tuple[type[Any], Vocabulary]]] = {
    "/v1/chat/completions": (ChatFields, OPENAI),
    "/v1/completions": (CompletionFields, OPENAI),
    "/v1/responses": (ResponseFields, OPENAI),
    "/v1/messages": (MessagesFields, MESSAGES),
    "/v1/embeddings": (embeddings.EmbeddingFields, embeddings.VOCABULARY),
    "/api/chat": (OllamaChatFields, OLLAMA),
    "/api/generate": (OllamaGenerateFields, OLLAMA),
    "/api/embed": (OllamaEmbedFields, OLLAMA),
    "/api/embeddings": (OllamaEmbeddingsFields, OLLAMA),
}


async def check_readable(path: str, body: bytes) -> None:
    """Raises ApiError as the route will. What only the model's own tokenizer, template or profile can tell is left to
    that."""
    fields, vocabulary = FIELDS[path]

    def check() -> None:
        given, _ = decode_request(body, fields, strict=False, api=vocabulary)
        if isinstance(given, ChatFields):
            check_without_model(given)

    await beside_others(body, check)
