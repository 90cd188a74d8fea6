"""The environment does not contradict the profile: variables that slow an engine down, end its start, or say
otherwise than the profile does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from appliance.engines import NAMES, VLLM
from appliance.plan.effective import workers
from appliance.preflight.checks.libraries import lacks_deep_gemm
from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity

Applies = Callable[[Subject], bool]


def _always(subject: Subject) -> bool:
    return True


def _on_gpu(subject: Subject) -> bool:
    return subject.device.gpu is not None


def _with_graphs(subject: Subject) -> bool:
    return _on_gpu(subject) and not subject.profile.enforce_eager


def _over_several(subject: Subject) -> bool:
    return _on_gpu(subject) and workers(subject.profile) > 1


def _on_sm12x(subject: Subject) -> bool:
    return any(gpu.compute_capability[0] == 12 for gpu in subject.gpus)


def _lacks_deep_gemm(subject: Subject) -> bool:
    return _on_gpu(subject) and lacks_deep_gemm(subject)


def _names_another_backend(subject: Subject) -> bool:
    return subject.profile.backends.get("attention", "auto") != "auto"


@dataclass(frozen=True)
class Contradiction:
    """`value` is the pattern of what the variable must not hold as a whole; `says` goes on from the variable."""

    name: str
    value: str
    says: str
    severity: Severity = Severity.WARNING
    applies: Applies = _always
    engines: tuple[str, ...] = NAMES
    source: str = ""


_YES: Final = r"(?i:1|true|yes|on)"
_VLLM: Final = (VLLM.name,)
ROWS: Final = (
    Contradiction("CUDA_LAUNCH_BLOCKING", _YES, "makes every kernel wait for the previous one; it is meant for "
                                                "debugging, not "
                  "for serving", applies=_on_gpu),
    Contradiction("VLLM_ATTENTION_BACKEND", r".+", "chooses attention, as `backends.attention` of the profile does "
                  "otherwise", applies=_names_another_backend, engines=_VLLM),
    Contradiction("VLLM_USE_DEEP_GEMM", _YES, "asks for DeepGEMM, which fails on sm_12x with \"Unknown recipe\"",
                  Severity.ERROR, _on_sm12x, _VLLM, "https://github.com/vllm-project/vllm/issues/47169"),
    Contradiction("VLLM_USE_DEEP_GEMM", _YES, "asks for DeepGEMM, which is not installed: vLLM refuses experts in FP8 "
                  "then, and in some versions its warm-up ends every launch",
                  Severity.ERROR, _lacks_deep_gemm, _VLLM, "https://github.com/vllm-project/vllm/issues/41849"),
    Contradiction("VLLM_WORKER_MULTIPROC_METHOD", r"fork", "forks workers, and CUDA cannot be used in a fork "
                                                           "once it has "
                  "been initialised", applies=_over_several, engines=_VLLM),
    Contradiction("NCCL_P2P_DISABLE", _YES, "routes traffic between GPUs through host memory, which is slower",
                  applies=_over_several, engines=_VLLM),
    Contradiction("NCCL_SHM_DISABLE", _YES, "routes traffic between GPUs over the network, which is much slower",
                  applies=_over_several, engines=_VLLM),
    Contradiction("TORCHDYNAMO_DISABLE", _YES, "turns off torch.compile, which the profile leaves on",
                  applies=_with_graphs, engines=_VLLM),
    Contradiction("TORCH_COMPILE_DISABLE", _YES, "turns off torch.compile, which the profile leaves on",
                  applies=_with_graphs, engines=_VLLM),
)  # fmt: skip


def run(subject: Subject) -> Iterator[Finding]:
    environ = subject.engine_environ
    told: set[str] = set()
    for row in ROWS:
        value = environ.get(row.name)
        if value is None or row.name in told or subject.engine not in row.engines:
            continue
        if not re.fullmatch(row.value, value.strip(), re.DOTALL) or not row.applies(subject):
            continue
        told.add(row.name)
        in_profile = row.name in subject.profile.engine_options.environment
        field = f"vllm.environment.{row.name}" if in_profile else row.name
        yield Finding(
            id="variable-contradicts",
            severity=row.severity,
            message=f"{row.name}={value[:40]} {row.says}.",
            field=field,
            value=value[:80],
            evidence=(row.source,) if row.source else (),
            fix=Fix(text="Remove it.", patch={field: None})
            if in_profile
            else Fix(text="Unset it for `ingot serve`.", command=f"unset {row.name}"),
        )
