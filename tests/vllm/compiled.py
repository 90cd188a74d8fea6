"""What vLLM left in its caches, as tests of packs have it, and the facts that go with it."""

from __future__ import annotations

from appliance.vllm.cache_packs.facts import Facts

FACTS = Facts(
    model="sha256:1",
    folder="/models/one",
    installed="/opt/vllm",
    versions={"vllm": "0.32.0", "torch": "2.13.0"},
    processor="NVIDIA H200, sm_90",
    driver="580",
    settings={"max-model-len": "4096"},
)
COMPILED = {
    "triton/AB/kernel.cubin": b"cubin",
    "vllm/torch_compile_cache/1f/rank_0_0/model": b"graph" * 1000,
    "inductor/xe/one.main.so": b"\x7fELF",
    "flashinfer/.cache/flashinfer/0.6.13/90a/cached_ops/norm/norm.so": b"\x7fELF",
    "flashinfer/.cache/flashinfer/0.6.13/90a/cached_ops/norm/.ninja_log": b"# ninja log v5",
}
