"""The one command that fixes a launch without a patch. Of one that Ingot did not start there is no profile, but whoever
started it can install a package, unset a variable, or start it again with other arguments."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Final

import msgspec

from appliance.diagnosis.cause import UNKNOWN, Cause, Groups
from appliance.diagnosis.launch_mending import Site
from appliance.diagnosis.provenance import LaunchSettings
from appliance.diagnosis.shell_words import is_variable, operand
from appliance.protocol import Diagnosis, Fix

# The package that brings a module. A name out of a log is no name of a package: whoever registers it would be trusted.
PACKAGES: Final[Mapping[str, str]] = {
    "accelerate": "accelerate", "av": "av", "bitsandbytes": "bitsandbytes", "blobfile": "blobfile", "boto3": "boto3",
    "causal_conv1d": "causal-conv1d", "compressed_tensors": "compressed-tensors", "cv2": "opencv-python-headless",
    "datasets": "datasets", "decord": "decord", "einops": "einops", "fastsafetensors": "fastsafetensors",
    "flashinfer": "flashinfer-python", "gguf": "gguf", "jinja2": "jinja2", "librosa": "librosa",
    "llguidance": "llguidance", "lmcache": "lmcache", "mamba_ssm": "mamba-ssm", "mistral_common": "mistral-common",
    "modelscope": "modelscope", "mooncake": "mooncake-transfer-engine", "nixl": "nixl", "outlines": "outlines",
    "peft": "peft", "PIL": "pillow", "qwen_vl_utils": "qwen-vl-utils", "ray": "ray",
    "runai_model_streamer": "runai-model-streamer", "scipy": "scipy", "sentencepiece": "sentencepiece",
    "soundfile": "soundfile", "tensorizer": "tensorizer", "tiktoken": "tiktoken", "timm": "timm",
    "torchcodec": "torchcodec", "xgrammar": "xgrammar", "yaml": "pyyaml", "zmq": "pyzmq",
}  # fmt: skip
# The package of Debian and Ubuntu that brings a program.
PROGRAMS: Final[Mapping[str, str]] = {
    "c++": "build-essential", "cc": "build-essential", "ffmpeg": "ffmpeg", "g++": "build-essential",
    "gcc": "build-essential", "git": "git", "ip": "iproute2", "ldconfig": "libc-bin", "lscpu": "util-linux",
    "lspci": "pciutils", "make": "make", "ninja": "ninja-build", "numactl": "numactl",
}  # fmt: skip
# What a launch may have asked for, where its model has nothing of the kind.
ASKED_FOR: Final[Mapping[str, tuple[str, ...]]] = {"no-weights": ("load_format",)}
# A cache that the engine alone fills, in somebody's home: not the root user's, which is often a container's.
ENGINES_CACHE: Final = re.compile(
    r"(?!/root/)(?:/[^/]{1,80}){1,8}?/(?:\.cache/(?:vllm|triton|flashinfer|tilelang)|\.(?:triton|flashinfer|vllm|dg_jit))"
    r"(?=/|$)"
)
MAX_TEXT: Final = 4000
# Causes whose command is for the shell, or the home, of somebody who started the engine by hand.
OF_A_SHELL: Final = ("too-many-open-files", "compile-cache")
HUB: Final = ("hub-offline", "network-unreachable")
# A repository as messages name it: its address, the path that was asked for, its name in quotes.
REPOSITORY: Final = re.compile(
    r"(?:https?://[\w.:-]{1,80}/|with url: /|(?<=['\"`]))(?:api/models/|(?P<other>datasets|spaces)/)?"
    r"(?P<name>(?!docs/|settings/)[A-Za-z0-9][\w.-]{0,80}/[\w.-]{0,120}\w)"
)


def with_mending(
    found: Diagnosis, cause: Cause, groups: Groups, settings: LaunchSettings, message: str = ""
) -> Diagnosis:
    """With that command, where there is one and the fix has no patch. `message` is what the cause was found in."""
    if found.fix is None or settings.of_sglang:
        return found
    if settings.of_a_profile:
        return msgspec.structs.replace(found, fix=_of_a_launch(found.fix, cause, groups, settings))
    if found.fix.patch:
        return found
    path = groups.get("path", UNKNOWN)
    given = settings.given_path(path) if path != UNKNOWN else None
    given = given or next(iter(settings.changed(ASKED_FOR.get(cause.name, ()))), None)
    if given is not None:
        changed = settings.fix_of(given, "")
        return found if changed.command is None else msgspec.structs.replace(found, fix=changed)
    command = _command(cause, groups, settings, message)
    if command is None:
        return found
    return msgspec.structs.replace(found, fix=msgspec.structs.replace(found.fix, command=command))


def _of_a_launch(fix: Fix, cause: Cause, groups: Groups, settings: LaunchSettings) -> Fix:
    """Of one of Ingot's: a limit that it inherited is no setting of its profile, and what a row knows to run in a
    shell does not reach it."""
    site = Site.here()
    raised = site.with_limit(cause.family, cause.name)
    if raised is not None:
        return msgspec.structs.replace(fix, patch=None, command=raised)
    if fix.patch:
        return fix
    path = groups.get("path", UNKNOWN)
    added = settings.command_without_path(path) if path != UNKNOWN else None
    asked_for = next(iter(settings.changed(ASKED_FOR.get(cause.name, ()))), None)
    if asked_for is not None:
        return settings.fix_of(asked_for, "")
    kept = None if cause.name in OF_A_SHELL else fix.command
    return msgspec.structs.replace(fix, command=added or _command_here(site, cause, groups) or kept)


def _command_here(site: Site, cause: Cause, groups: Groups) -> str | None:
    """What changes this machine, where that is what a launch of Ingot's needs."""
    path = groups.get("path", UNKNOWN)
    if cause.name == "package-missing" and (package := PACKAGES.get(groups["module"])) is not None:
        return site.with_package(package)
    if (package := PROGRAMS.get(groups.get("program", ""))) is not None:
        return site.with_program(package)
    if cause.name == "cache-not-writable" and path != UNKNOWN:
        return site.with_own_caches(path)
    if cause.name == "compile-cache":
        return site.without_compiled()
    return None


def _command(cause: Cause, groups: Groups, settings: LaunchSettings, message: str) -> str | None:
    if cause.sets:
        values = {name: v.format_map(groups) if isinstance(v, str) else v for name, v in cause.sets.items()}
        return settings.command_also_with(values)
    if cause.unsets:
        variables = [name.format_map(groups) for name in cause.unsets]
        return settings.command_without(variables) if all(map(is_variable, variables)) else None
    # Of a package that is there, a module or name may be missing: to install it again changes nothing.
    if cause.name == "package-missing" and (package := PACKAGES.get(groups["module"])) is not None:
        return f"python -m pip install {package}"
    if (package := PROGRAMS.get(groups.get("program", ""))) is not None:
        return f"sudo apt-get install -y {package}"
    if cause.name == "cache-not-writable" and (own := _own_cache(groups.get("path", UNKNOWN))) is not None:
        return f'sudo mkdir -p {own} && sudo chown -R "$(id -u):$(id -g)" {own}'
    if cause.name in HUB and (model := settings.hub_model) is not None and _names_no_other(message, model):
        return f"HF_HUB_OFFLINE=0 hf download {shlex.quote(model)}"
    return None


def _names_no_other(message: str, repository: str) -> bool:
    named = REPOSITORY.finditer(message[:MAX_TEXT])
    return all(found["name"] == repository and not found["other"] for found in named)


def _own_cache(path: str) -> str | None:
    """The engine's own folder in which that path is, as one word of a command."""
    folder = ENGINES_CACHE.match(path)
    return operand(folder[0]) if folder is not None and not {".", ".."} & set(path.split("/")) else None
