"""The model folder is complete: nothing would have to be downloaded from a hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from appliance.checkpoint.tokenizer import read_settings
from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity

# Any of these sets is a tokenizer that vLLM loads from a folder.
TOKENIZERS = (("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"), ("tekken.json",),
              ("tiktoken.model",), ("spiece.model",))  # fmt: skip
PROCESSORS = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")


def run(subject: Subject) -> Iterator[Finding]:
    config, folder = subject.raw_config, subject.folder
    remote = _remote_code(config) or _remote_code(read_settings(folder))
    known = subject.vllm_source.architectures if subject.vllm_source else frozenset()
    if remote is not None and subject.architecture not in known:
        yield _finding(
            "hub-needed",
            Severity.ERROR,
            f"The model's code is in another repository ({remote}) and would have to be downloaded and run.",
            "auto_map",
            "Choose a model whose architecture vLLM supports itself.",
        )
    if not any(all((folder / name).exists() for name in names) for names in TOKENIZERS):
        yield _finding(
            "tokenizer-missing",
            Severity.ERROR,
            f"{folder.name} has no tokenizer. vLLM would try to download one.",
            None,
            "Copy tokenizer.json or tokenizer.model from the model's source.",
        )
    if "vision_config" in config and not any((folder / name).exists() for name in PROCESSORS):
        yield _finding(
            "processor-missing",
            Severity.WARNING,
            f"The model accepts images, but {folder.name} has no {PROCESSORS[0]}. vLLM would try to download it.",
            "vision_config",
            f"Copy {PROCESSORS[0]} from the model's source.",
        )


def _remote_code(settings: dict[str, Any]) -> str | None:
    """The repository that an auto_map names: `org/name--module.Class`."""
    given = settings.get("auto_map")
    values = given.values() if isinstance(given, dict) else ()
    names = [name for value in values for name in (value if isinstance(value, list) else [value])]
    found = next((name for name in names if isinstance(name, str) and "--" in name), None)
    return json.dumps(found.split("--", 1)[0])[1:-1][:80] if found else None


def _finding(id: str, severity: Severity, message: str, field: str | None, remedy: str) -> Finding:
    return Finding(id=id, severity=severity, message=message, field=field, fix=Fix(text=remedy))
