"""The tokenizer of a model folder, and text as it grows token by token.

Over the `tokenizers` library, without transformers. Loading reads `tokenizer.json` and the names of the special
tokens in `tokenizer_config.json`; nothing is ever run or fetched.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import tokenizers

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.json_file import read_object

REPLACEMENT: Final = "\ufffd"
# A character is at most four bytes, so an unfinished one begins in one of the last three tokens.
MAX_UNFINISHED: Final = 3
MAX_HELD: Final = 8
CONTEXT_TOKENS: Final = 4
# Characters; a longer text is encoded in a way that costs more at first but blocks nobody else.
SHORT_TEXT: Final = 4096


class Tokenizer:
    """Text to token ids and back. `vocab_size` counts the added tokens too; ids are below it."""

    def __init__(self, backend: Any, settings: dict[str, Any]) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        vocab: dict[str, int] = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocab.values(), default=-1) + 1
        # In characters: a text of n tokens has at most n times as many.
        self.longest_token = max(map(len, vocab), default=1)
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.bos_token = _special_token(settings, "bos_token")
        self.eos_token = _special_token(settings, "eos_token")
        self.bos_token_id = self.token_to_id(self.bos_token)
        self.eos_token_id = self.token_to_id(self.eos_token)
        self.settings = settings

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Raises CheckpointError when the folder has no tokenizer that can be loaded."""
        path = folder / "tokenizer.json"
        settings = read_settings(folder)
        if not path.exists() and (folder / "tokenizer.model").exists():
            raise CheckpointError(
                "tokenizer-missing",
                f"{folder.name} has a tokenizer.model (SentencePiece) but no tokenizer.json.",
                file=folder / "tokenizer.model",
                remedy="Convert it on a machine with transformers, then copy the resulting tokenizer.json.",
                command="python -c 'import sys; from transformers import AutoTokenizer as T; "
                f"T.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[1])' {shlex.quote(folder.name)}",
            )
        read_object(path, "tokenizer")  # for errors with line and column; the library's own name neither
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower; re-raised as ours
            raise CheckpointError(
                "tokenizer-invalid",
                f"tokenizer.json is not a tokenizer: {str(error)[:200]}.",
                file=path,
                remedy="Copy the original tokenizer.json. If it is intact, it may need a newer Ingot.",
            ) from error
        return cls(backend, settings)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids. Raises ValueError for text that is not valid Unicode (half of a surrogate pair)."""
        text.encode()
        if len(text) <= SHORT_TEXT:
            ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        else:  # the batch's call lets other threads run meanwhile, and keeps no offsets
            ids = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of the tokens, exactly as `IncrementalDetokenizer` gives it in pieces."""
        ids = list(token_ids)
        text: str = self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
        if REPLACEMENT not in text:
            return text
        # The library makes a whole run of byte tokens invalid where one of them is; the pieces had been sent by then.
        detokenizer = IncrementalDetokenizer(self, skip_special_tokens=skip_special_tokens)
        return detokenizer.push(ids) + detokenizer.finish()

    def token_to_id(self, token: str | None) -> int | None:
        token_id: int | None = None if token is None else self._backend.token_to_id(token)
        return token_id

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary's own spelling (`Ġthe`), not text; None for an id that the tokenizer does not have."""
        token: str | None = self._backend.id_to_token(token_id)
        return token

    def decode_window(self, token_ids: Sequence[int]) -> str:
        """The library's text of a few tokens, special ones included."""
        text: str = self._backend.decode(token_ids, skip_special_tokens=False)
        return text


def read_settings(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, or an empty mapping where there is none."""
    path = folder / "tokenizer_config.json"
    return read_object(path, "tokenizer-config") if path.exists() else {}


def _special_token(settings: dict[str, Any], name: str) -> str | None:
    """A token is written as text, or as an object with `content`."""
    token = settings.get(name)
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


class IncrementalDetokenizer:
    """The text of one request's tokens as they come.

    The pieces put together are the text of all tokens, and no piece ends within a character: bytes that a later token
    may complete are held back until it comes. Decoding is done over a short window, since a token's text can depend on
    the tokens around it: its leading space on being the first, its bytes on the bytes before.

    `prompt_token_ids` is what stands before the first token: with it, a completion that goes on in the middle of a
    sentence keeps the space that it begins with. `kept` are special tokens that are not skipped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        kept: frozenset[int] = frozenset(),
        prompt_token_ids: Sequence[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids - kept if skip_special_tokens else frozenset()
        before = [token for token in prompt_token_ids[-CONTEXT_TOKENS:] if token not in self._skipped]
        self._context: list[int] = before  # tokens whose text has been given out
        self._context_text = tokenizer.decode_window(before)
        self._held: list[int] = []  # tokens whose text has not

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens complete; it may be empty."""
        return "".join([self._push(token) for token in token_ids if token not in self._skipped])

    def finish(self) -> str:
        """What was held back, now that nothing can complete it."""
        text = self._decode(len(self._held))
        return self._give(len(self._held), text)

    def _push(self, token: int) -> str:
        self._held.append(token)
        text = self._decode(len(self._held))
        if text and not text.endswith(REPLACEMENT):
            return self._give(len(self._held), text)
        if len(self._held) > MAX_HELD:
            return self._give_finished(text)
        return ""

    def _decode(self, count: int) -> str:
        """The text that the first `count` held tokens add to what has been given out."""
        text = self._tokenizer.decode_window(self._context + self._held[:count])
        if text.startswith(self._context_text):
            return text[len(self._context_text) :]
        # An invalid byte makes the library call the whole run of byte tokens invalid, the ones given out too.
        return self._tokenizer.decode_window(self._held[:count])

    def _give(self, count: int, text: str) -> str:
        """Give out the text of the first `count` held tokens, which become the context of those that follow."""
        if count and text:
            self._context = self._held[:count]
            self._context_text = self._tokenizer.decode_window(self._context)
        self._held = self._held[count:]
        return text

    def _give_finished(self, text: str) -> str:
        """Bytes that are no text have piled up: give out those that no later token can turn into a character."""
        for count in range(len(self._held) - MAX_UNFINISHED, 0, -1):
            part = self._decode(count)
            if text.startswith(part):
                return self._give(count, part)
        return ""
