"""Environment variables (VLLM_*, NCCL_*, INGOT_* and a few others) are spelled correctly, have an effect, and hold
values that the engine takes."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from appliance.hardware.device import VISIBLE
from appliance.preflight.subject import Subject
from appliance.profile.nearest import nearest_choice
from appliance.profile.vllm_options import VARIABLE_BY_NAME, variable_matches
from appliance.protocol import Finding, Fix, Severity
from appliance.redaction import variable_without_secrets
from appliance.vllm_program import PROGRAM
from kernels.cast.setting import CAST, JIT

OURS: Final = (
    "INGOT_HOME", "INGOT_MODELS", "INGOT_HARDWARE", CAST, JIT, PROGRAM, "INGOT_ADMIN", "INGOT_ADMIN_PASSWORD",
    "INGOT_ADMIN_PASSWORD_FILE", "INGOT_ALLOWED_ORIGINS", "INGOT_API_KEY", "INGOT_API_KEY_FILE", "INGOT_CONSOLE_HOST",
    "INGOT_CONSOLE_NAMES", "INGOT_CONSOLE_PORT", "INGOT_CONSOLE_PROXY", "INGOT_CONSOLE_URL", "INGOT_COOKIE_SECURE",
    "INGOT_ENGINE_CONTAINER", "INGOT_ENGINE_CONTROL", "INGOT_ENGINE_HOST", "INGOT_ENGINE_PORT", "INGOT_ENGINE_URL",
    "INGOT_MEDIA", "INGOT_KEYLESS", "INGOT_PUBLISHED_ADDRESS", "INGOT_SESSION_HOURS",
)  # fmt: skip
SHARED: Final = (
    VISIBLE, "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_CACHE_PATH",
    "CUDA_MODULE_LOADING", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "NVIDIA_VISIBLE_DEVICES",
    "TRITON_CACHE_DIR", "TRITON_PTXAS_PATH", "TORCHINDUCTOR_CACHE_DIR", "HF_HOME", "HF_HUB_OFFLINE",
)  # fmt: skip
# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
_NCCL: Final = """
    ALGO ALLOC_P2P_NET_LL_BUFFERS ASYNC_ERROR_HANDLING BLOCKING_WAIT BUFFSIZE CGA_CLUSTER_SIZE CHECKS_DISABLE
    CHECK_POINTERS COLLNET_ENABLE COLLNET_NODE_THRESHOLD COMM_BLOCKING COMM_ID COMM_SPLIT_SHARE_RESOURCES CONF_FILE
    CONNECT_ROUND_ROBIN CROSS_NIC CTA_POLICY CTRAN_ENABLE CUMEM_ENABLE CUMEM_HOST_ENABLE DEBUG DEBUG_FILE
    DEBUG_SUBSYS DEBUG_TIMESTAMP_FORMAT DEBUG_TIMESTAMP_LEVELS DESYNC_DEBUG DMABUF_ENABLE GDRCOPY_ENABLE
    GDR_FLUSH_DISABLE GRAPH_DUMP_FILE GRAPH_FILE GRAPH_MIXING_SUPPORT GRAPH_REGISTER HOME HOSTID IB_ADAPTIVE_ROUTING
    IB_ADDR_FAMILY IB_ADDR_RANGE IB_AR_THRESHOLD IB_CUDA_SUPPORT IB_DATA_DIRECT IB_DISABLE IB_ECE_ENABLE IB_FIFO_TC
    IB_GID_INDEX IB_HCA IB_MERGE_NICS IB_PCI_RELAXED_ORDERING IB_PKEY IB_QPS_PER_CONNECTION IB_RETRY_CNT
    IB_RETURN_ASYNC_EVENTS IB_ROCE_VERSION_NUM IB_SL IB_SPLIT_DATA_ON_QPS IB_TC IB_TIMEOUT IGNORE_CPU_AFFINITY
    INCLUDE_DIR LAUNCH_MODE LAUNCH_ORDER_IMPLICIT LAUNCH_RACE_FATAL LIBRARY LIB_DIR LL128_BUFFSIZE LL_BUFFSIZE
    LL_THRESHOLD LOCAL_REGISTER MAX_CTAS MAX_CTAS_P2P MAX_NCHANNELS MAX_NRINGS MAX_P2P_NCHANNELS MIN_CTAS
    MIN_NCHANNELS MIN_NRINGS MIN_P2P_NCHANNELS MNNVL_ENABLE NCHANNELS NCHANNELS_PER_NET_PEER NET NET_DISABLE_INTRA
    NET_FORCE_FLUSH NET_GDR_C2C NET_GDR_LEVEL NET_GDR_READ NET_MERGE_LEVEL NET_OVERHEAD NET_PLUGIN
    NET_SHARED_BUFFERS NET_SHARED_COMMS NSOCKS_PERTHREAD NTHREADS NVB_DISABLE NVLSTREE_MAX_CHUNKSIZE NVLS_CHUNKSIZE
    NVLS_ENABLE NVLS_NCHANNELS OOB_NET_ENABLE OOB_NET_IFNAME P2P_DIRECT_DISABLE P2P_DISABLE P2P_LEVEL
    P2P_NET_CHUNKSIZE P2P_NVL_CHUNKSIZE P2P_PCI_CHUNKSIZE P2P_PXN_LEVEL P2P_USE_CUDA_MEMCPY PROFILER_PLUGIN
    PROGRESS_APPENDOP_FREQ PROTO PXN_C2C PXN_DISABLE RAS_ADDR RAS_ENABLE RAS_TIMEOUT_FACTOR RINGS ROOT
    RUNTIME_CONNECT SET_STACK_SIZE SET_THREAD_NAME SHM_DISABLE SHM_LOCALITY SHM_USE_CUDA_MEMCPY
    SINGLE_PROC_MEM_REG_ENABLE SINGLE_RING_THRESHOLD SOCKET_FAMILY SOCKET_IFNAME SOCKET_NTHREADS
    SOCKET_POLL_TIMEOUT_MSEC SOCKET_RETRY_CNT SOCKET_RETRY_SLEEP_MSEC SYM_CTAS SYM_KERNEL THREAD_THRESHOLDS
    TOPO_DUMP_FILE TOPO_DUMP_FILE_RANK TOPO_FILE TREE_THRESHOLD TUNER_PLUGIN UNPACK_SOCKET_IFNAME VERSION WIN_ENABLE
    WIN_STRIDE WORK_ARGS_BYTES WORK_FIFO_BYTES
"""
NCCL: Final = tuple(f"NCCL_{name}" for name in _NCCL.split())
# How alike a name must be to a known one before it is called a slip; the beginning alone makes names rather alike.
ALIKE: Final = 0.86
ATTENTION: Final = "VLLM_ATTENTION_BACKEND"  # what every guide to older versions sets
# Kubernetes sets these in every container beside a service that is called vllm-something.
_OF_KUBERNETES: Final = re.compile(r"_SERVICE_(HOST|PORT)|_PORT_\d+_(TCP|UDP)|_PORT$")
_LOOKS_LIKE: Final = re.compile(r"[A-Z][A-Z0-9]*_[A-Z0-9_]+")


def run(subject: Subject) -> Iterator[Finding]:
    environ = subject.engine_environ
    known = [*OURS, *SHARED, *NCCL]
    if subject.traits.lists_variables:
        source = subject.vllm_source
        listed = source.variables if source and subject.context.surroundings else frozenset()
        known += sorted(listed) or [name for name in VARIABLE_BY_NAME if name.startswith("VLLM_")]
        yield from _gone(subject, listed)
        yield from _values(subject, subject.launched_environ)
    slips = dict(misspelt(environ, known))
    if subject.traits.lists_variables:
        yield from _unread(subject, listed, slips)
    for name, right in slips.items():
        in_profile = name in subject.profile.engine_options.environment
        value = environ[name]
        told = variable_without_secrets(right, variable_without_secrets(name, value))
        yield Finding(
            id="variable-misspelt",
            severity=Severity.WARNING,
            message=f"{name} is set but unused. Did you mean {right}?",
            field=f"vllm.environment.{name}" if in_profile else name,
            value=told[:80],
            fix=Fix(text=f"Use {right}, or remove it from the profile.", patch={f"vllm.environment.{name}": None})
            if in_profile
            else Fix(
                text=f"Set {right} instead for `ingot serve`, or unset it.",
                command=f"unset {shlex.quote(name)}; export {right}={shlex.quote(value)}"
                if _is_plain(value) and told == value
                else f"unset {shlex.quote(name)}",
            ),
        )


def misspelt(environ: Mapping[str, str], known: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(name, the known name that it is like), of names that begin, or nearly begin, as known ones do."""
    names = set(known)
    families = {name.partition("_")[0] for name in names}
    for name in sorted(environ):
        if name in names or not _LOOKS_LIKE.fullmatch(name[:80].upper()) or len(name) > 80:
            continue
        family = difflib.get_close_matches(name.upper().partition("_")[0], families, n=1, cutoff=0.74)
        alike = difflib.get_close_matches(name.upper(), names, n=1, cutoff=ALIKE) if family else []
        if alike and not _is_another(name, alike[0]):
            yield name, alike[0]


def _is_another(name: str, known: str) -> bool:
    """Names that differ in their number, or in a whole word, are meant to differ: NCCL_LL_ and NCCL_LL128_."""
    words, others = name.upper().split("_"), known.split("_")
    if len(words) != len(others):
        extra = set(words) ^ set(others)
        return not any(len(word) < 3 for word in extra) and set(others) <= set(words)
    differing = [(a, b) for a, b in zip(words, others, strict=True) if a != b]
    return any(difflib.SequenceMatcher(None, a, b).ratio() < 0.6 for a, b in differing)


def _gone(subject: Subject, listed: frozenset[str]) -> Iterator[Finding]:
    """What the profile may set, and this version of vLLM no longer reads."""
    for name in subject.profile.vllm.environment:
        if listed and name.startswith("VLLM_") and name not in listed:
            field = f"vllm.environment.{name}"
            yield Finding(
                id="variable-without-effect",
                severity=Severity.WARNING,
                message=f"vLLM {subject.vllm_source and subject.vllm_source.version} does not use {name}.",
                field=field,
                value=subject.profile.vllm.environment[name],
                fix=Fix(text="Remove it.", patch={field: None}),
            )


def _unread(subject: Subject, listed: frozenset[str], slips: Mapping[str, str]) -> Iterator[Finding]:
    """What is set outside the profile and is like nothing that this version of vLLM reads: plugins have such too."""
    for name in sorted(subject.context.environ):
        if not listed or not name.startswith("VLLM_") or name in listed or name in slips or _OF_KUBERNETES.search(name):
            continue
        if name in OURS or name in subject.profile.vllm.environment or name not in subject.engine_environ:
            continue
        instead = " Choose the backend in the profile: `backends.attention`." if name == ATTENTION else ""
        yield Finding(
            id="variable-without-effect",
            severity=Severity.WARNING if name == ATTENTION else Severity.INFO,
            message=f"{name} is set, but vLLM {subject.vllm_source and subject.vllm_source.version} does not use it.",
            field=name,
            value=variable_without_secrets(name, subject.context.environ[name])[:80],
            fix=Fix(
                text=f"Unset it for `ingot serve`, unless a plugin uses it.{instead}",
                command=f"unset {shlex.quote(name)}",
            ),
        )


def _values(subject: Subject, environ: Mapping[str, str]) -> Iterator[Finding]:
    """What the profile says was judged when it was saved, but for the choices of the vLLM that is installed."""
    source, given = subject.vllm_source, subject.profile.vllm.environment
    choices = source.choices if source and subject.context.surroundings else {}
    for name in sorted({*choices, *VARIABLE_BY_NAME} & environ.keys()):
        value, variable = environ[name], VARIABLE_BY_NAME.get(name)
        told = variable_without_secrets(name, value)
        allowed = choices.get(name) or (variable.choices if variable else ())
        if name in choices and value not in choices[name]:
            yield _refused(name, value, allowed, in_profile=name in given)
        elif name in choices or name in given or not name.startswith("VLLM_"):
            continue
        elif variable and not variable_matches(variable, value):
            yield Finding(
                id="variable-value",
                severity=Severity.WARNING,
                message=f"{told[:40]!r} is not a valid value of {name}. {variable.help}",
                field=name,
                value=told[:80],
                evidence=(f"expected: {', '.join(allowed) or variable.pattern}",),
                fix=Fix(text="Unset it for `ingot serve`, or set it in the profile's vllm.environment.",
                        command=f"unset {shlex.quote(name)}"),
            )  # fmt: skip


def _refused(name: str, value: str, allowed: Sequence[str], *, in_profile: bool) -> Finding:
    """vLLM ends at once with such a value."""
    nearest, told = nearest_choice(value[:80], allowed), variable_without_secrets(name, value)
    patch, command = None, None
    if in_profile:
        patch = {f"vllm.environment.{name}": nearest}
    else:
        command = f"export {name}={shlex.quote(nearest)}" if nearest else f"unset {shlex.quote(name)}"
    use = f"Set it to {nearest}" if nearest else "Remove it" if in_profile else "Unset it"
    return Finding(
        id="variable-value",
        severity=Severity.ERROR,
        message=f"{told[:40]!r} is not a value that the installed vLLM takes for {name}: it would not start.",
        field=f"vllm.environment.{name}" if in_profile else name,
        value=told[:80],
        evidence=(f"expected: {', '.join(allowed)}",),
        fix=Fix(text=f"{use}{'' if in_profile else ' for `ingot serve`'}.", patch=patch, command=command),
    )


def _is_plain(value: str) -> bool:
    return value.isprintable() and len(value) <= 80
