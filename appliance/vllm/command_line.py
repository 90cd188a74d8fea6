"""A plan as the command that starts vLLM: its arguments and what its environment says besides.

A pure function of the plan and of where the launch has its socket and its caches. Nothing secret is in it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from appliance.home import Home
from appliance.redaction import variable_without_secrets, without_secrets
from appliance.vllm.backends import BackendOptions, options_of
from appliance.vllm.memory import cpu_cache_gib
from appliance.vllm.no_jit import watch
from appliance.vllm.settings import FLAGS
from kernels.selection import AUTO, Explanation

if TYPE_CHECKING:
    from appliance.plan.effective import Effective
    from appliance.vllm.plan import VllmPlan

# The cache on a CPU where the model's sizes are not known here. vLLM's own default is nearly all memory of the machine.
UNKNOWN_CACHE_GIB: Final = 4
# A host name that can never be: no picture or sound is fetched from anywhere, only what a request brings along.
NO_DOMAIN: Final = "nowhere.invalid"

# A launch makes its own, which only its user can open.
UNKNOWN_SOCKET: Final = Path("/tmp/ingot-vllm-.../vllm.sock")

OFFLINE: Final = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
    # vLLM asks there whether FlashInfer could download kernels, and FlashInfer downloads them: nobody listens on it.
    "FLASHINFER_CUBINS_REPOSITORY": "http://127.0.0.1:1/",
}
# Where vLLM and its libraries write, by variable: folders under the caches of the state folder.
CACHES: Final = {
    "VLLM_CACHE_ROOT": "vllm",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch-extensions",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "DG_JIT_CACHE_DIR": "deep-gemm",
    "TILELANG_CACHE_DIR": "tilelang",
    "CUTE_DSL_CACHE_DIR": "cute-dsl",
    "CUDA_CACHE_PATH": "cuda",
    "HF_HOME": "huggingface",
    "XDG_CACHE_HOME": "xdg",
    "NUMBA_CACHE_DIR": "numba",
}
# Where Python keeps what it compiles of vLLM's sources, if they were installed without bytecode and this user may not
# write beside them: a folder beside the caches, the same for every launch.
BYTECODE: Final = ("PYTHONPYCACHEPREFIX", "vllm-bytecode")
# Folders that a launch has no use for. vLLM 0.24 and others hash their paths into the keys of what they compile, which
# is then found only where these are the same on every machine. Below a file nothing can be.
UNUSED_FOLDERS: Final = {
    "VLLM_CONFIG_ROOT": "/dev/null/vllm-config",
    "VLLM_XLA_CACHE_PATH": "/dev/null/vllm-xla",
}
MULTIPROCESSING: Final = "VLLM_WORKER_MULTIPROC_METHOD"
# The engine's process goes on from what the server has imported, 15 s of an H100's host, and does not import it again.
FORKED: Final = {MULTIPROCESSING: "fork"}
LOGGING: Final = {
    "PYTHONUNBUFFERED": "1",
    "PYTHONFAULTHANDLER": "1",
    "VLLM_LOGGING_COLOR": "0",
    "NO_COLOR": "1",
}
# What an operator's environment may hold that is not for the engine: our own Python's paths, and that it keeps no
# bytecode (each of vLLM's processes would compile all that it imports); what would open vLLM beyond the routes that the
# front door passes on, or close it to the front door.
NOT_INHERITED: Final = frozenset({
    "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "VLLM_API_KEY", "VLLM_SERVER_DEV_MODE", "VLLM_PLUGINS",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_ALLOW_INSECURE_SERIALIZATION", "VLLM_PORT", "VLLM_USE_MODELSCOPE",
    "VLLM_CONFIGURE_LOGGING", "VLLM_LOGGING_CONFIG_PATH", "VLLM_DEBUG_LOG_API_SERVER_RESPONSE",
    "PYTHONDONTWRITEBYTECODE",
})  # fmt: skip


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a launch of vLLM listens, and where it may write."""

    socket: Path
    caches: Path

    @classmethod
    def below(cls, home: Home, socket: Path = UNKNOWN_SOCKET) -> Place:
        """Every launch on one state folder finds what earlier ones have compiled."""
        return cls(socket=socket, caches=home.root / "caches" / "vllm")


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """`environment` is what is added to that of the front door; `defaults` are for what that one does not say."""

    arguments: tuple[str, ...]
    environment: dict[str, str]
    defaults: dict[str, str] = {}

    def whole_environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        kept = {
            name: value
            for name, value in inherited.items()
            if name not in NOT_INHERITED and not name.startswith("INGOT_")
        }
        return self.defaults | kept | self.environment

    def shown(self, inherited: Mapping[str, str]) -> str:
        """As a person would type it into a shell, with the values that a launch from this environment has, but for
        secrets: it is printed and logged."""
        whole = self.whole_environment(inherited)
        settings = [
            f"{name}={shlex.quote(variable_without_secrets(name, whole[name]))}"
            for name in sorted(self.defaults | self.environment)
        ]
        return without_secrets(" ".join([*settings, shlex.join(self.arguments)]))


def set_by_ingot(name: str) -> bool:
    """Whether every launch has a value of its own for the variable, whatever the front door's says."""
    return any(name in names for names in (OFFLINE, LOGGING, UNUSED_FOLDERS, CACHES))


def cache_variables(place: Place) -> dict[str, str]:
    """The variables that say where vLLM and its libraries write."""
    return {variable: str(place.caches / folder) for variable, folder in CACHES.items()}


def render(plan: VllmPlan, place: Place) -> Command:
    arguments = [str(plan.program.path), "serve", str(plan.folder)]
    for flag, value in flags(plan, place.socket).items():
        arguments += _as_arguments(flag, value)
    environment = dict(_environment(plan, place))
    return Command(arguments=tuple(arguments), environment=environment, defaults=dict(_defaults(plan, place)))


def flags(plan: VllmPlan, socket: Path = UNKNOWN_SOCKET) -> dict[str, Any]:
    """Every flag with its value; the profile's own go before those that follow from it."""
    return {**dict(_flags(plan, socket)), **plan.profile.vllm.extra_args}


def _flags(plan: VllmPlan, socket: Path) -> Iterator[tuple[str, Any]]:
    profile, device = plan.profile, plan.device.kind
    yield "uds", str(socket)
    for row in FLAGS:
        value = row.value(profile)
        if value is not None and value != row.unless and row.only in (None, device):
            yield row.flag, value
    if plan.max_model_len is not None:
        yield "max-model-len", plan.max_model_len
    # Sampling as the profile says and not as the checkpoint does; its end-of-text tokens are read all the same.
    yield "generation-config", "vllm"
    if profile.sampling_defaults:
        yield "override-generation-config", _generation_config(profile.sampling_defaults)
    yield "allowed-media-domains", NO_DOMAIN
    yield "disable-uvicorn-access-log", True
    if profile.ray.address is not None:
        yield "distributed-executor-backend", "ray"
    for choice in chosen_backends(plan.effective):
        yield from choice.arguments.items()


def _environment(plan: VllmPlan, place: Place) -> Iterator[tuple[str, str]]:
    profile = plan.profile
    yield from OFFLINE.items()
    yield from LOGGING.items()
    yield from UNUSED_FOLDERS.items()
    yield from cache_variables(place).items()
    if plan.device.gpu is None:
        yield "VLLM_CPU_KVCACHE_SPACE", str(_cpu_cache_gib(plan))
    yield from plan.environment.items()
    yield from watch.variables(profile, place.socket.parent).items()
    yield from _several_hosts(plan)
    for choice in chosen_backends(plan.effective):
        yield from choice.environment.items()
    yield from profile.vllm.environment.items()


def _defaults(plan: VllmPlan, place: Place) -> Iterator[tuple[str, str]]:
    if plan.may_fork:
        yield from FORKED.items()
    if plan.needs_bytecode:
        yield BYTECODE[0], str(place.caches.with_name(BYTECODE[1]))


def _several_hosts(plan: VllmPlan) -> Iterator[tuple[str, str]]:
    ray = plan.profile.ray
    if ray.address is None:
        return
    yield "RAY_ADDRESS", ray.address
    if ray.host_ip is not None:
        yield "VLLM_HOST_IP", ray.host_ip
    if ray.network_interface is not None:
        yield "NCCL_SOCKET_IFNAME", ray.network_interface
        yield "GLOO_SOCKET_IFNAME", ray.network_interface


def chosen_backends(effective: Effective | None) -> Iterator[BackendOptions]:
    """The options that select backends: those named in the profile, and where `auto` passed one over for a known
    fault. Otherwise it chooses by itself, as its authors measured."""
    for explanation in effective.selection if effective else ():
        if explanation.chosen is not None and (explanation.requested != AUTO or _avoids_a_fault(explanation)):
            yield options_of(explanation.op.name, explanation.chosen.name)


def _avoids_a_fault(explanation: Explanation) -> bool:
    faults = {backend.name: {fault.reason for fault in backend.faults} for backend in explanation.op.of("vllm")}
    return any(
        objection.reason in faults[verdict.backend]
        for verdict in explanation.verdicts
        for objection in verdict.objections
    )


def _generation_config(sampling: Mapping[str, float | int]) -> str:
    """vLLM takes the names of Hugging Face's generation_config.json."""
    named = {"max_new_tokens" if name == "max_tokens" else name: value for name, value in sampling.items()}
    return json.dumps(named, sort_keys=True)


def _cpu_cache_gib(plan: VllmPlan) -> int:
    given = plan.profile.kv_cache_memory_bytes
    if given is None and plan.memory is not None:
        given = plan.memory.cache_bytes
    return UNKNOWN_CACHE_GIB if given is None else cpu_cache_gib(given)


def _as_arguments(flag: str, value: Any) -> list[str]:
    if value is True:
        return [f"--{flag}"]
    if value is False:
        return [f"--no-{flag}"]
    if isinstance(value, list):
        return [f"--{flag}", *map(str, value)]
    # In one word: a value that begins with a dash is not taken for a flag.
    return [f"--{flag}={value}"]
