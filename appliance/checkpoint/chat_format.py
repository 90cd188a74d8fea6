"""How a model's prompts are made of messages: by its chat template or, where it has none, by an encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from appliance.checkpoint import encoders
from appliance.checkpoint.chat_template import ChatTemplate
from appliance.checkpoint.encoders import ENCODERS


class ChatFormat(Protocol):
    """What a ChatTemplate and an Encoder have in common; their attributes are described there."""

    @property
    def text(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def variables(self) -> frozenset[str]: ...
    @property
    def message_fields(self) -> Mapping[str, frozenset[str]]: ...
    @property
    def keeps_tools(self) -> bool: ...
    @property
    def wants_short_ids(self) -> bool: ...

    def nearest_effort(self, effort: str) -> str: ...

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str: ...


def load_chat_format(folder: Path, encoder: str = "auto") -> ChatFormat | None:
    """The `encoder` of that name; for `auto` the folder's template, or else the encoder of its family, in the revision
    that the folder says; None where there is neither. Raises CheckpointError."""
    if encoder in ENCODERS:
        return ENCODERS[encoder]("chat-encoding")
    template = ChatTemplate.load(folder)
    if template is not None:
        return template
    choice = encoders.choose(folder)
    return ENCODERS[choice.name](choice.source) if choice else None
