"""A report in sentences, as the terminal and the console say them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from appliance.engines import engine_named
from appliance.explain.report import Report
from appliance.profile.sizes import size_text
from kernels.cast.architectures import ARCHITECTURES

_WORDS = {"kv": "KV", "moe": "MoE", "gdn": "GDN", "mhc": "mHC", "mla": "MLA", "rms": "RMS", "fp8": "FP8"}


def op_label(op: str) -> str:
    """`rms_norm` -> "RMS norm"."""
    joined = " ".join(_WORDS.get(word, word) for word in op.replace("deep_gemm", "DeepGEMM").split("_"))
    return joined[0].upper() + joined[1:]


def layers_label(layers: Sequence[int], num_layers: int) -> str:
    """`0-2, 4-6`; "all", or "once a step"."""
    if not layers:
        return "once a step"
    if len(layers) == num_layers:
        return "all"
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def about(report: Report) -> str:
    """What was judged: the model, its format, the device, the engine."""
    gpu = report.device.gpu
    where = "on the CPU" if gpu is None else f"on {gpu.name} ({report.context.place}, {size_text(gpu.memory_bytes)})"
    engine = engine_named(report.context.engine).title
    cache = f", cache in {report.context.cache_dtype}" if report.context.cache_dtype != report.context.dtype else ""
    return f"{report.architecture} in {report.context.dtype}{cache} {where}, with {engine}"


def sentences(report: Report) -> list[str]:
    """What there is to say beside the table."""
    said = (_ranks(report), _memory(report), _libraries(report), _cast_needs(report), _vllm(report))
    return [sentence for sentence in (*said, *_elsewhere(report)) if sentence]


def _elsewhere(report: Report) -> Iterator[str]:
    """Places that get another backend than most of their op."""
    for row in report.rows:
        for each in row.sites:
            if each.why and each.backend is not None:
                yield f"{each.site.key} gets {each.backend}: {each.why}."


def source_label(source: str) -> str:
    """Short enough for a table: "vllm-project/vllm#39288" for an issue or a pull request, else whose it is."""
    match = re.match(r"https://github\.com/([\w.-]+/[\w.-]+)(?:/(?:issues|pull)/(\d+))?", source)
    if match:
        return f"{match[1]}#{match[2]}" if match[2] else match[1]
    return source.partition("//")[2].partition("/")[0] or source


def _cast_needs(report: Report) -> str:
    """What a cast for this model and device has to hold."""
    if report.device.gpu is None or not engine_named(report.context.engine).sealable:
        return ""
    if report.context.cast is not None:
        return f"The engine is sealed to a cast that holds the {report.kernels:,} kernels it needs."
    if not report.can_be_cast:
        known = ", ".join(ARCHITECTURES)
        return f"Kernels cannot be cast for {report.context.place} (only for {known}); they are compiled on first use."
    if not report.kernels:
        return "No cast is needed: none of the chosen backends compiles kernels."
    return f"A cast for {report.context.place} must hold {report.kernels:,} kernels."


def _ranks(report: Report) -> str:
    if report.ranks == 1:
        return ""
    places = "processes" if report.device.gpu is None else "GPUs"
    heads = report.context.num_heads
    return f"The model is split over {report.ranks} {places}: what follows is of each, with {heads} attention heads."


def _memory(report: Report) -> str:
    plan = report.memory
    if plan is None:
        return ""
    if plan.fits:
        states = f"{size_text(plan.state_bytes)} of states; " if plan.state_bytes else ""
        copies = f" and {plan.num_snapshots:,} copies of states" if plan.state_bytes else ""
        pools = ", ".join(
            f"{pool.num_blocks * plan.block_size:,} tokens"
            + (f" in layers with a window of {pool.window:,}" if pool.window else "")
            for pool in plan.pools
        )
        return f"Memory: {size_text(plan.weight_bytes)} of weights; {states}the KV cache holds {pools}{copies}."
    needed, there = size_text(plan.needed_bytes), size_text(plan.available_bytes)
    return f"Memory: does not fit; needs {needed}, but only {there} is available."


def _libraries(report: Report) -> str:
    if report.device.gpu is None:
        return ""
    found = ", ".join(f"{name} {version}" for name, version in sorted(report.context.libraries.items()))
    return f"Libraries: {found or 'none that a backend needs'}."


def _vllm(report: Report) -> str:
    """What chooses these backends in vLLM."""
    flags = [f"--{name} {value}" for row in report.rows for name, value in (row.arguments or {}).items()]
    variables = [f"{name}={value}" for row in report.rows for name, value in (row.environment or {}).items()]
    return f"For vLLM this means {' '.join(flags + variables)}." if flags or variables else ""
