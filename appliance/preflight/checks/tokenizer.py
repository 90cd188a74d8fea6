"""The tokenizer can be loaded and speaks of tokens that the model has."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.checkpoint.config import SUPPORTED_ARCHITECTURES
from appliance.checkpoint.errors import CheckpointError
from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity


def run(subject: Subject) -> Iterator[Finding]:
    if subject.engine == "vllm" and not (subject.folder / "tokenizer.json").exists():
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
            message=f"The tokenizer's last id is {token_id}; the model's vocab_size is {config.vocab_size}.",
            field="vocab_size",
            value=tokenizer.vocab_size,
            evidence=(file, f"token {token_id}: {tokenizer.id_to_token(token_id)!a}"),
            fix=Fix(
                text="The tokenizer belongs to another model: copy tokenizer.json and config.json from one source."
            ),
        )
    if not config.eos_token_ids:
        yield Finding(
            id="eos-missing",
            severity=Severity.WARNING,
            message="Neither config.json nor generation_config.json names an eos_token_id: answers end at max_tokens.",
            field="eos_token_id",
            evidence=(str(subject.folder / "config.json"),),
            fix=Fix(text="Copy generation_config.json from the model's source, or add eos_token_id to config.json."),
        )
