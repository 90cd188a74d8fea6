"""The installed vLLM supports the weights' quantisation on this GPU and in this number format.

The config check covers the native engine's own methods: block-scaled FP8, or none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity
from appliance.vllm.source import SPELLINGS, Method, method_name

# What a method needs where the installed vLLM does not say it as a constant (capability, number formats).
ELSE: Final = {
    "awq": Method(75, ("float16", "bfloat16")),
    "gptq": Method(60, ("float16", "bfloat16")),
    "fp8": Method(75, ("bfloat16", "float16")),
    "modelopt_fp4": Method(75, ("bfloat16", "float16")),
    "mxfp4": Method(80, ("bfloat16",)),
    "compressed-tensors": Method(70, ("float32", "float16", "bfloat16")),
}
# (method, the first capability that multiplies in that format, what happens before it)
NATIVE_FROM: Final = (
    ("fp8", (8, 9), "8-bit floats"),
    ("modelopt", (8, 9), "8-bit floats"),
    ("modelopt_fp4", (10, 0), "4-bit floats"),
    ("mxfp4", (9, 0), "4-bit floats"),
)


def run(subject: Subject) -> Iterator[Finding]:
    source = subject.vllm_source
    config = subject.raw_config
    text = config.get("text_config")
    given = config.get("quantization_config") or (text.get("quantization_config") if isinstance(text, dict) else None)
    name = method_name(given)
    flag = subject.profile.vllm.extra_args.get("quantization")
    yield from _against_the_flag(subject, name, flag)
    name = name or (SPELLINGS.get(flag, flag) if isinstance(flag, str) else None)
    if name is None:
        return
    methods = source.methods if source and subject.context.surroundings else {}
    if methods and name not in methods:
        yield _finding(
            subject,
            "quantization-unknown",
            f"The weights are quantised with {name}, which vLLM {source and source.version} does not support.",
            name,
            (f"supported: {', '.join(sorted(methods))}",),
            Fix(text="Use the model in another format, such as FP8 or bfloat16, or a vLLM that supports it."),
        )
        return
    method = methods.get(name) or ELSE.get(name)
    if method is not None:
        yield from _against_the_gpu(subject, name, method)
        yield from _against_the_dtype(subject, name, method)


def _against_the_flag(subject: Subject, name: str | None, flag: object) -> Iterator[Finding]:
    """vLLM takes a flag that the checkpoint contradicts for an error; only kernels of one format replace each other."""
    if not isinstance(flag, str) or name is None:
        return
    family = {"awq", "auto_awq", "awq_marlin"}, {"gptq", "auto_gptq", "gptq_marlin"}
    wanted = SPELLINGS.get(flag, flag)
    if wanted == name or any({wanted, name} <= kin for kin in family) or name == "compressed-tensors":
        return
    field = "vllm.extra-args.quantization"
    yield Finding(
        id="quantization-contradicts",
        severity=Severity.ERROR,
        message=f"{field} is {flag}, but the checkpoint is quantised with {name}.",
        field=field,
        value=flag,
        evidence=(str(subject.folder / "config.json"),),
        fix=Fix(text="Leave it to the checkpoint.", patch={field: None}),
    )


def _against_the_gpu(subject: Subject, name: str, method: Method) -> Iterator[Finding]:
    for gpu in subject.gpus[:1]:
        capability = gpu.compute_capability
        number = capability[0] * 10 + capability[1]
        if method.capability is not None and number < method.capability:
            yield _finding(
                subject,
                "quantization-needs-newer-gpu",
                f"{name} needs sm_{method.capability} or newer, and {gpu.name} is {gpu.architecture}.",
                name,
                (str(subject.folder / "config.json"),),
                Fix(text="Use the model in another format (GPTQ runs from sm_60, AWQ from sm_75), or a newer GPU."),
            )
            continue
        slow = next((row for row in NATIVE_FROM if row[0] == name and capability < row[1]), None)
        if slow is not None:
            yield Finding(
                id="quantization-emulated",
                severity=Severity.INFO,
                message=f"{gpu.name} has no {slow[2]} arithmetic. {name} saves memory but is computed in 16 bits.",
                field="quantization_config",
                value=name,
                fix=Fix(text="Nothing to do. 4-bit AWQ or GPTQ may be faster on this GPU."),
            )


def _against_the_dtype(subject: Subject, name: str, method: Method) -> Iterator[Finding]:
    wanted = subject.profile.dtype
    if wanted == "auto" or not method.dtypes or wanted in method.dtypes or subject.device.gpu is None:
        return
    patch = {"dtype": "float16" if method.dtypes == ("float16",) else None}
    yield Finding(
        id="quantization-dtype",
        severity=Severity.ERROR,
        message=f"dtype is {wanted}, but {name} computes in {' or '.join(method.dtypes)}.",
        field="dtype",
        value=wanted,
        evidence=(str(subject.folder / "config.json"),),
        fix=Fix(text="Use float16." if patch["dtype"] else "Leave it to the checkpoint.", patch=patch),
    )


def _finding(subject: Subject, id: str, message: str, name: str, evidence: tuple[str, ...], fix: Fix) -> Finding:
    return Finding(
        id=id,
        severity=Severity.ERROR,
        message=message,
        field="quantization_config",
        value=name[:40],
        evidence=evidence,
        fix=fix,
    )
