"""The chat template, if the model has one, renders an ordinary conversation."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.checkpoint.chat_template import TemplateError
from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity

SAMPLE = ({"role": "user", "content": "Hello"},)


def run(subject: Subject) -> Iterator[Finding]:
    template = subject.chat_template
    if template is None:
        yield Finding(
            id="chat-template-missing",
            severity=Severity.WARNING,
            message="The model has no chat template. /v1/completions works; /v1/chat/completions does not.",
            evidence=(str(subject.folder),),
            fix=Fix(text="Copy chat_template.jinja from the model's source if it has one."),
        )
        return
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
