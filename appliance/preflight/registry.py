"""The checks, in the order in which they run: a row each. A new check is a file in checks/ and a row here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from appliance.preflight.checks import (
    allocator,
    architecture,
    backends,
    cast,
    chat_template,
    config,
    context_length,
    device,
    digest,
    dtype,
    engine,
    memory,
    model_folder,
    parallelism,
    port,
    profile,
    tokenizer,
    unused_settings,
    weights,
)
from appliance.preflight.subject import Subject
from appliance.protocol import Finding


@dataclass(frozen=True)
class Check:
    """`run` yields findings; a CheckpointError that it raises becomes one. It is skipped when a check named in `after`
    found an error or was itself skipped. It is left out for an engine that is not among `engines`; and where it
    builds on the model's config (`on_config`), for a model that only vLLM knows."""

    id: str
    title: str
    run: Callable[[Subject], Iterator[Finding]]
    after: tuple[str, ...] = ()
    engines: tuple[str, ...] = ("native", "vllm")
    on_config: bool = False

    def concerns(self, subject: Subject) -> bool:
        return not self.on_config or subject.engine == "native" or subject.readable


NATIVE = ("native",)

CHECKS: tuple[Check, ...] = (
    Check("profile", "Profile is valid", profile.run),
    Check("engine", "Engine is installed", engine.run, after=("profile",)),
    Check("unused-settings", "Every setting has an effect", unused_settings.run, after=("profile",)),
    Check("model-folder", "Model folder is there", model_folder.run, after=("profile",)),
    Check("config", "Config is readable", config.run, after=("model-folder",)),
    Check("architecture", "Architecture is supported", architecture.run, after=("config", "engine"), on_config=True),
    Check("weights", "Weights are complete", weights.run, after=("model-folder",)),
    Check("tokenizer", "Tokenizer loads", tokenizer.run, after=("model-folder",)),
    Check("chat-template", "Chat template works", chat_template.run, after=("model-folder",)),
    Check("digest", "Model is the expected one", digest.run, after=("weights",)),
    Check("device", "Device is there", device.run, after=("profile",)),
    Check("parallelism", "Number of devices is possible", parallelism.run, after=("profile", "engine"), engines=NATIVE),
    Check(
        "context-length", "Context is within the model's", context_length.run, after=("architecture",), on_config=True
    ),
    Check("dtype", "Number formats are possible", dtype.run, after=("architecture", "device"), on_config=True),
    Check(
        "backends",
        "Backends can run here",
        backends.run,
        after=("architecture", "device", "parallelism"),
        on_config=True,
    ),
    Check("cast", "Kernels are cast", cast.run, after=("architecture", "device", "parallelism"), engines=NATIVE),
    Check("memory", "Memory is enough", memory.run, after=("architecture", "device", "context-length"), on_config=True),
    Check("allocator", "Allocator settings are safe", allocator.run, after=("profile",)),
    Check("port", "Port is free", port.run),
)
