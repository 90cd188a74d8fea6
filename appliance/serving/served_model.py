"""What the front door itself needs of a model: its name and limits, its tokenizer, its chat template."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from appliance.serving.errors import ApiError, PromptTooLongError, bad_request
from appliance.serving.reading import ModelFormats
from appliance.serving.structured import CheckedGrammars, Form, Thoughts

if TYPE_CHECKING:
    from appliance.checkpoint.chat_format import ChatFormat
    from appliance.checkpoint.tokenizer import IncrementalDetokenizer, Tokenizer
    from appliance.core_protocol import Pooling
    from appliance.plan.launch import NativePlan

# Longer texts and prompts, and chats of more messages, are rendered, encoded and decoded in a thread, so that nobody
# else waits for them.
INLINE_CHARACTERS = 4096
INLINE_MESSAGES = 64
INLINE_TOKENS = 512
HAVE_LENGTH = (str, dict, list, tuple)


class Echo(NamedTuple):
    """A prompt as text, and where in it each of its tokens begins."""

    text: str
    offsets: list[int]


NO_ECHO = Echo("", [])


class ServedModel:
    def __init__(
        self, plan: NativePlan, digest: str, tokenizer: Tokenizer, template: ChatFormat | None, created: int
    ) -> None:
        self.name = plan.profile.served_model_name
        self.created = created
        self.max_model_len = plan.engine_config().max_model_len
        self.vocab_size = plan.config.vocab_size
        self.eos_token_ids = plan.config.eos_token_ids
        self.digest = digest
        self.dtype = plan.dtype
        self.family = plan.config.model_type
        self.weight_bytes = plan.index.total_bytes
        self.num_parameters = sum(math.prod(entry.shape) for entry in plan.index.tensors.values())
        self.hidden_size = plan.config.hidden_size
        self.pooling = _pooling(plan.folder)
        self.device = plan.device.gpu.name if plan.device.gpu else "cpu"
        self.sampling_defaults = plan.profile.sampling_defaults
        self.strict_requests = plan.profile.strict_requests
        self.salts_by_key = plan.profile.prefix_cache_salt == "api-key"
        self.tokenizer = tokenizer
        self._template = template
        self.formats = ModelFormats.choose(plan.profile, plan.config.model_type, template.text if template else None)
        # Special tokens that may be markers of calls or reasoning: not those that begin and end texts.
        self._grammars = CheckedGrammars.of_model(plan.folder, plan.config, tokenizer)
        self.special_tokens = {tokenizer.decode_window([token_id]): token_id for token_id in tokenizer.special_ids}
        self.marker_ids = tokenizer.special_ids - {tokenizer.bos_token_id, tokenizer.eos_token_id, *self.eos_token_ids}

    @classmethod
    def load(cls, plan: NativePlan, created: int) -> ServedModel:
        """Blocking. Raises CheckpointError."""
        # Late: the first answer over HTTP does not wait for these.
        from appliance.checkpoint.chat_format import load_chat_format
        from appliance.checkpoint.digest import checkpoint_digest
        from appliance.checkpoint.tokenizer import Tokenizer

        template = load_chat_format(plan.folder, plan.profile.chat_encoding)
        return cls(plan, checkpoint_digest(plan.folder), Tokenizer.load(plan.folder), template, created)

    def check_name(self, name: str | None) -> None:
        if name is not None:
            check_name(name, self.name)

    def check_pooling(self) -> None:
        """Raises ApiError where the engine cannot embed as the model does."""
        if self.pooling is None:
            message = (
                f"The model {self.name!r} makes embeddings in a way that the native engine does not support. Choose a "
                "model that pools by its last token or the mean, or use `engine: vllm`."
            )
            raise bad_request(message, "model", "pooling_unsupported")

    def detokenizer(
        self, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool, kept: frozenset[int]
    ) -> IncrementalDetokenizer:
        from appliance.checkpoint.tokenizer import IncrementalDetokenizer

        return IncrementalDetokenizer(
            self.tokenizer,
            skip_special_tokens=skip_special_tokens,
            kept=kept,
            prompt_token_ids=prompt_token_ids,
        )

    async def echoes(self, prompts: Sequence[Sequence[int]]) -> list[Echo]:
        """Of prompts as token ids."""

        def echoes() -> list[Echo]:
            return [self._echo(prompt) for prompt in prompts]

        return echoes() if sum(map(len, prompts)) <= INLINE_TOKENS else await asyncio.to_thread(echoes)

    def _echo(self, prompt_token_ids: Sequence[int]) -> Echo:
        detokenizer = self.detokenizer((), skip_special_tokens=True, kept=frozenset())
        pieces = [detokenizer.push((token_id,)) for token_id in prompt_token_ids]
        return Echo("".join(pieces) + detokenizer.finish(), list(accumulate(map(len, pieces[:-1]), initial=0)))

    async def encode(self, text: str, param: str, *, add_special_tokens: bool = True) -> list[int]:
        """Raises ApiError; of a long text, other requests do not wait for the tokens."""

        def encode() -> list[int]:
            return self.encode_at_once(text, param, add_special_tokens=add_special_tokens)

        return encode() if len(text) <= INLINE_CHARACTERS else await asyncio.to_thread(encode)

    def encode_at_once(self, text: str, param: str, *, add_special_tokens: bool = True) -> list[int]:
        """Raises ApiError."""
        most = self.max_model_len * self.tokenizer.longest_token
        if len(text) > most:
            message = (
                f"The prompt has {len(text):,} characters. {self._context}, at most {most:,} characters. "
                "Shorten the prompt."
            )
            raise PromptTooLongError(message, param, len(text) // self.tokenizer.longest_token)

        try:
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        except ValueError:
            raise bad_request(
                f"The field {param!r} contains half of a surrogate pair, which is not valid text.", param
            ) from None

    @property
    def has_template(self) -> bool:
        return self._template is not None

    @property
    def template(self) -> ChatFormat:
        """Raises ApiError where the model has none."""
        if self._template is None:
            message = (
                f"The model {self.name!r} has no chat template, so it cannot take messages. Use /v1/completions, "
                f"or put a chat_template.jinja into the model's folder."
            )
            raise bad_request(message, "messages", "no_chat_template")
        return self._template

    def render_chat(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        from appliance.checkpoint.chat_template import TemplateError

        try:
            return self.template.render(messages, **variables)
        except TemplateError as error:
            raise bad_request(str(error), error.param) from None

    async def grammar(self, form: Form, thoughts: Thoughts = ()) -> str:
        """What an answer of this form keeps to, behind one of `thoughts`. Raises ApiError if it cannot."""
        return await self._grammars.check(form, thoughts)

    @property
    def _context(self) -> str:
        """In OpenAI's words, by which LiteLLM and others tell that a prompt is too long."""
        return f"This model's maximum context length is {self.max_model_len:,} tokens"

    def room(self, prompt_tokens: int, max_tokens: int | None, param: str) -> int:
        """How many tokens may follow the prompt. Raises ApiError if the prompt, alone or with `max_tokens`, exceeds the
        context."""
        left: int = self.max_model_len - prompt_tokens
        if left < 1:
            message = (
                f"The prompt has {prompt_tokens:,} tokens. {self._context}, for prompt and answer together. "
                "Shorten the prompt."
            )
            raise PromptTooLongError(message, param, prompt_tokens)
        if max_tokens is not None and max_tokens > left:
            message = (
                f"The prompt has {prompt_tokens:,} tokens and max_tokens is {max_tokens:,}, together "
                f"{prompt_tokens + max_tokens:,}. {self._context}. "
                f"Use max_tokens {left:,} or less."
            )
            raise bad_request(message, "max_tokens", "context_length_exceeded")
        return left

    async def check_fits(self, text: str, param: str) -> None:
        """Raises PromptTooLongError if this part of a prompt alone exceeds the context."""
        self.room(len(await self.encode(text, param, add_special_tokens=False)), None, param)

    def cache_salt(self, key_id: str, asked: str | None) -> str:
        """The salt for a request's prefix-cache hashes; "" if shared by everybody. It does not reveal the key."""
        parts = (key_id if self.salts_by_key else "", asked or "")
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest() if any(parts) else ""

    def check_token_ids(self, token_ids: Sequence[int], param: str) -> None:
        for position, token_id in enumerate(token_ids):
            if token_id >= self.vocab_size:
                place = f"{param}[{position}]"
                raise bad_request(
                    f"{place}: {token_id:,} is not in the vocabulary; use 0 to {self.vocab_size - 1:,}.", place
                )


def _pooling(folder: Path) -> Pooling | None:
    """None where the engine cannot do what the folder says, which matters to requests for embeddings only."""
    from appliance.checkpoint.errors import CheckpointError
    from appliance.checkpoint.sentence_transformers import read_pooling

    try:
        return read_pooling(folder)
    except CheckpointError:
        return None


def is_short_chat(messages: Sequence[Any], given: Any) -> bool:
    """Whether messages, and what is `given` beside them, can be checked and rendered at once."""
    return len(messages) <= INLINE_MESSAGES and is_short((messages, given))


def is_short(value: Any) -> bool:
    """Whether all its texts and numbers together are read in no time."""
    size, rest = 0, [value]
    while rest:
        each = rest.pop()
        size += len(each) if isinstance(each, HAVE_LENGTH) else 1
        if size > INLINE_CHARACTERS:
            return False
        if isinstance(each, dict):
            rest += each.values()
        elif isinstance(each, (list, tuple)):
            rest += each
    return True


def check_name(asked: str, *names: str) -> None:
    """Raises ApiError (404) where `asked` is none of `names`, the models that a request may name."""
    if asked not in names:
        available = f"Available model{'' if len(names) == 1 else 's'}: {', '.join(map(repr, names))}."
        message = f"The model {asked[:100]!r} is not available. {available}"
        raise ApiError(404, message, param="model", code="model_not_found")
