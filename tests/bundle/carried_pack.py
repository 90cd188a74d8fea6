"""A cache pack as a launch on an H100 would leave it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import structs

from appliance.bundle.signature import Key
from appliance.caches.collect import make_pack
from appliance.vllm.cache_packs.facts import Facts
from appliance.vllm.cache_packs.pack import PackFolder
from tests.vllm.test_vllm_command import gpus

H100 = gpus().gpus[0]
FACTS = Facts(
    model="sha256:1",
    folder="/models/one",
    installed="/opt/vllm",
    versions={"vllm": "0.32.0", "torch": "2.13.0"},
    processor=f"{H100.name}, {H100.architecture}",
    driver="580",
)


def written(tmp_path: Path, name: str = "chat-h100", key: Key | None = None, **facts: Any) -> PackFolder:
    """A pack with two equal files, and one whose name no bundle could hold."""
    caches = tmp_path / f"caches-{name}"
    for path, content in (
        ("triton/AB/one.cubin", b"cubin"),
        ("triton/CD/two.cubin", b"cubin"),
        ("flashinfer/.cache/a b~#.so", b"\x7fELF"),
    ):
        (caches / path).parent.mkdir(parents=True, exist_ok=True)
        (caches / path).write_bytes(content)
    made = tmp_path / "made" / name
    return make_pack(caches, made, profile="chat", cold_s=90, facts=structs.replace(FACTS, **facts), key=key)
