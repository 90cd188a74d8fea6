"""The tokenizer loads and belongs to this model, its config and its chat template."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from appliance.checkpoint.chat_template import TemplateError
from appliance.checkpoint.config import SUPPORTED_ARCHITECTURES
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.model_config import ModelConfig
from appliance.checkpoint.tokenizer import Tokenizer
from appliance.preflight.checks.chat_template import SAMPLE
from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity

# Embeddings are padded, at most by some hundredths; another model's vocabulary is smaller by more.
LEAST_SHARE: Final = 0.75
_MARK: Final = re.compile(r"<\|[^|<>\s]{1,64}\|>|<｜[^｜<>\s]{1,64}｜>|</?[a-z_]{1,32}>")
ONE_SOURCE: Final = "copy tokenizer.json, tokenizer_config.json and config.json from one source."


def run(subject: Subject) -> Iterator[Finding]:
    if subject.traits.reads_more and not (subject.folder / "tokenizer.json").exists():
        return  # vLLM reads other kinds as well: the check of hub access looks whether there is one
    tokenizer = subject.tokenizer
    try:
        if subject.architecture not in SUPPORTED_ARCHITECTURES:
            return
        config = subject.config
    except CheckpointError:  # reported by the check of the config
        return
    file = str(subject.folder / "tokenizer.json")
    if tokenizer.vocab_size > config.vocab_size:
        token_id = tokenizer.vocab_size - 1
        yield Finding(
            id="tokenizer-too-large",
            severity=Severity.ERROR,
            message=f"The tokenizer's last id is {token_id:,}, outside the model's vocabulary of "
            f"{config.vocab_size:,}.",
            field="vocab_size",
            value=tokenizer.vocab_size,
            evidence=(file, f"token {token_id}: {tokenizer.id_to_token(token_id)!a}"),
            fix=Fix(text=f"The tokenizer belongs to another model: {ONE_SOURCE}"),
        )
    elif signs := list(_foreign(subject, tokenizer, config)):
        yield Finding(
            id="tokenizer-of-another-model",
            severity=Severity.WARNING,
            message=f"tokenizer.json may belong to another model: {signs[0]}.",
            field="vocab_size",
            value=tokenizer.vocab_size,
            evidence=(file, *signs[1:]),
            fix=Fix(text=f"If the answers make no sense, {ONE_SOURCE}"),
        )
    if not config.eos_token_ids:
        yield Finding(
            id="eos-missing",
            severity=Severity.WARNING,
            message="Neither config.json nor generation_config.json has an eos_token_id, so answers only end at "
            "max_tokens.",
            field="eos_token_id",
            evidence=(str(subject.folder / "config.json"),),
            fix=Fix(text="Copy generation_config.json from the model's source, or add eos_token_id to config.json."),
        )


def _foreign(subject: Subject, tokenizer: Tokenizer, config: ModelConfig) -> Iterator[str]:
    """Signs that the tokenizer is not this model's, though the model has a number for each of its tokens."""
    if tokenizer.vocab_size < LEAST_SHARE * config.vocab_size:
        yield f"it has {tokenizer.vocab_size:,} tokens; the model's vocab_size is {config.vocab_size:,}"
    unknown = [str(token_id) for token_id in config.eos_token_ids if tokenizer.id_to_token(token_id) is None]
    if unknown:
        yield f"it lacks the token {' or '.join(unknown)} that ends the model's answers"
    for name, token in (("bos_token", tokenizer.bos_token), ("eos_token", tokenizer.eos_token)):
        if token and tokenizer.token_to_id(token) is None:
            yield f"tokenizer_config.json names {token!a} as {name}, but there is no such token"
    if marks := _unknown_marks(subject, tokenizer):
        yield f"chat prompts contain {', '.join(marks)}, which are not tokens of it"


def _unknown_marks(subject: Subject, tokenizer: Tokenizer) -> list[str]:
    """Marks such as <|user|> of chat prompts, where the tokenizer knows none of them: a model may well be
    taught some in several tokens, but not all."""
    try:
        template = subject.chat_format
        written = template.render(SAMPLE) if template else ""
    except (CheckpointError, TemplateError):  # reported by the check of the chat template
        return []
    marks = list(dict.fromkeys(_MARK.findall(written)))
    known = any(tokenizer.token_to_id(mark) is not None for mark in marks)
    return [] if known else [ascii(mark)[1:-1] for mark in marks if mark.startswith(("<|", "<｜"))][:4]
