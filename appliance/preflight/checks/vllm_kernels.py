"""The installed vLLM has the libraries without which it cannot run this model's layers on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.preflight.checks.libraries import lacks_deep_gemm
from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity


def run(subject: Subject) -> Iterator[Finding]:
    chosen = subject.raw_config.get("index_topk")
    if subject.device.gpu is None or not chosen or not lacks_deep_gemm(subject):
        return
    # vllm/model_executor/layers/sparse_attn_indexer.py has no other kernels on a GPU.
    yield Finding(
        id="indexer-without-deepgemm",
        severity=Severity.ERROR,
        message=f"vLLM needs DeepGEMM for this model's sparse attention (`index_topk` {chosen}): it is not installed.",
        field="engine",
        value=subject.engine,
        fix=Fix(
            text="Use the native engine, whose kernels need no DeepGEMM, or an image whose vLLM brings it.",
            patch={"engine": "native"},
        ),
    )
