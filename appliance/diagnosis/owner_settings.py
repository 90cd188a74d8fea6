"""The settings that an error's owner has: what a launch may have set wrongly where the message names none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from appliance.diagnosis.provenance import LaunchSettings, Origin
from appliance.diagnosis.shell_words import is_variable
from appliance.protocol import Diagnosis

MAX_TOLD = 2
MAX_VALUE = 100
# As vLLM has them; the owners are those of `axes` and of `raise_sites.areas`.
SETTINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "adapter": ("--lora-modules", "--max-lora-rank"),
    "attention": ("--attention-backend",),
    "chat-template": ("--chat-template",),
    "collective": ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
    "compile-cache": ("--compilation-config",),
    "connector": ("--kv-transfer-config",),
    "draft-model": ("--speculative-config",),
    "engine-socket": ("VLLM_RPC_BASE_PATH",),
    "executor": ("--distributed-executor-backend", "--worker-cls"),
    "experts": ("--moe-backend",),
    "kv-cache": ("--block-size", "--kv-cache-dtype"),
    "kv-offload": ("--kv-offloading-size",),
    "logging": ("VLLM_LOGGING_LEVEL", "VLLM_LOGGING_CONFIG_PATH"),
    "multimodal": ("--limit-mm-per-prompt", "--mm-processor-kwargs"),
    "parser": ("--tool-call-parser", "--reasoning-parser"),
    "quantisation": ("--quantization",),
    "scheduler": ("--scheduler-cls",),
    "server": ("--middleware", "--root-path"),
    "socket": ("--host", "--port", "--uds"),
    "structured-output": ("--structured-outputs-config",),
    "telemetry": ("--otlp-traces-endpoint",),
    "tls": ("--ssl-certfile", "--ssl-keyfile"),
    "tokenizer": ("--tokenizer", "--tokenizer-mode"),
}
# What a launch chooses where its model may choose as well: an error of this family may be about that choice.
OF_FAMILY: Final[Mapping[str, tuple[str, ...]]] = {
    "backend": ("backends.attention", "backends.linear", "backends.moe"),
    "model-config": ("convert", "model_impl", "runner", "tokenizer_mode"),
    "quant-dtype": ("dtype", "kv_cache_dtype", "quantization"),
    "weights": ("load_format",),
}
# What a launch is not to do without because it failed.
KEPT: Final = ("tls",)
# What nothing but a setting brings into a launch.
OF_SETTINGS: Final = ("config", "port")


# Who listens at a socket of this kind has no port.
INSTEAD_OF_A_PORT: Final = "uds"


def with_settings_of(found: Diagnosis, owner: str | None, settings: LaunchSettings) -> Diagnosis:
    """With those of the owner's settings that the launch changed; or, where it is not known which, with their names."""
    names = SETTINGS.get(owner or "", ())
    if not names or found.fix is None or found.fix.patch or any(name in found.fix.text for name in names):
        return found
    changed = settings.changed(names)[:MAX_TOLD]
    if changed:
        values = ", ".join(f"{origin.key} is {origin.value[:MAX_VALUE]}" for origin in changed)
        keys = " and ".join(origin.key for origin in changed)
        decisive = _in_force(changed)
        alone = len(decisive) == 1 and owner not in KEPT and found.family in OF_SETTINGS
        only = settings.fix_of(decisive[0], "") if alone else found.fix
        return msgspec.structs.replace(
            found,
            summary=f"{found.summary.rstrip('.')}. {values}.",
            fix=msgspec.structs.replace(
                found.fix,
                text=f"{found.fix.text} Here, {keys} {'decides' if len(changed) == 1 else 'decide'} that.",
                patch=only.patch,
                command=only.command or found.fix.command,
            ),
        )
    if found.family not in OF_SETTINGS:
        return found
    command = found.fix.command or _without(owner, names, settings)
    listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    verb = "decides" if len(names) == 1 else "decide"
    return msgspec.structs.replace(
        found, fix=msgspec.structs.replace(found.fix, text=f"{found.fix.text} {listed} {verb} that.", command=command)
    )


def _in_force(changed: list[Origin]) -> list[Origin]:
    sockets = [origin for origin in changed if origin.name == INSTEAD_OF_A_PORT]
    return sockets or changed


def _without(owner: str | None, names: tuple[str, ...], settings: LaunchSettings) -> str | None:
    """What sets nothing but variables of the environment, which a log does not print, can be unset whatever they hold.
    Of a launch of Ingot's, a site's wrapper is looked into for them all."""
    if settings.of_a_profile:
        added = (settings.command_with(name, None) for name in names) if owner not in KEPT else ()
        return next(filter(None, added), None)
    return settings.command_without(names) if all(map(is_variable, names)) else None
