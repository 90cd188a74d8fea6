"""Caches that vLLM filled, and a pack of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.caches.collect import make_pack
from appliance.vllm.cache_packs.pack import PackFolder
from tests.vllm.compiled import COMPILED, FACTS


@pytest.fixture
def caches(tmp_path: Path) -> Path:
    """What a good launch leaves, with what compilers leave beside it and what is no code."""
    others = {
        "triton/AB/kernel.cubin.lock": b"",
        "triton/tmp.pid_7/kernel.cubin": b"half",
        "inductor/locks/one": b"",
        "huggingface/token": b"secret",
        "vllm-config/state.json": b"{}",
    }
    for path, content in (COMPILED | others).items():
        place = tmp_path / "caches" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    return tmp_path / "caches"


@pytest.fixture
def made(caches: Path, tmp_path: Path) -> PackFolder:
    return make_pack(caches, tmp_path / "packs" / "one", profile="chat", cold_s=116.2, facts=FACTS)
