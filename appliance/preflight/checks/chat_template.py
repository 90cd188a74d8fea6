"""The chat template, or the encoder of a model without one, renders an ordinary conversation."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.checkpoint.chat_template import TemplateError
from appliance.checkpoint.encoders import choose
from appliance.checkpoint.encoders.base import Encoder
from appliance.preflight.subject import Subject
from appliance.profile.parser_names import AUTO
from appliance.protocol import Finding, Fix, Severity

SAMPLE = ({"role": "user", "content": "Hello"},)


def run(subject: Subject) -> Iterator[Finding]:
    template = subject.chat_format
    if template is None:
        yield Finding(
            id="chat-template-missing",
            severity=Severity.WARNING,
            message="The model has no chat template. /v1/completions works; /v1/chat/completions does not.",
            evidence=(str(subject.folder),),
            fix=Fix(text="Copy chat_template.jinja from the model's source if it has one."),
        )
        return
    if isinstance(template, Encoder):
        yield from _assumed(subject)
    try:
        template.render(SAMPLE)
    except TemplateError as error:
        yield Finding(
            id="chat-template-fails",
            severity=Severity.WARNING,
            message=f"The chat template fails on a plain message: {error}.",
            field="chat_template",
            evidence=(template.source,),
            fix=Fix(text="Copy the original chat template. Until then, /v1/completions works."),
        )


def _assumed(subject: Subject) -> Iterator[Finding]:
    """Where only the engine's own front door encodes, and nothing says which revision is the model's."""
    if subject.traits.own_server or subject.profile.chat_encoding != AUTO:
        return
    choice = choose(subject.folder)
    if choice is not None and choice.assumed:
        yield Finding(
            id="chat-encoding-assumed",
            severity=Severity.WARNING,
            message="The model has neither a chat template nor the encoding folder that says which revision of its "
            f"prompts it was trained on. It is taken for {choice.name}, the newest.",
            field="chat-encoding",
            value=choice.name,
            evidence=(str(subject.folder),),
            fix=Fix(
                text="Copy the folder `encoding` from the model's source, or name the revision in the profile.",
                options=tuple({"chat-encoding": name} for name in choice.revisions),
            ),
        )
