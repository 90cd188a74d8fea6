"""Where memory does not suffice, the fix that is offered works: the profile with it passes on the same machine."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from appliance.hardware import Gpu, Host, Inventory
from appliance.hardware.gpu import GpuProcess
from appliance.home import Home
from appliance.preflight import PreflightContext, Report, run
from appliance.preflight.engine_subjects import subject_of
from appliance.preflight.registry import CHECKS
from appliance.profile.document import apply_patch
from appliance.protocol import Finding
from tests.tiny import write_checkpoint

GIB, MIB = 1 << 30, 1 << 20
ASKED = {"profile", "model-folder", "config", "architecture", "device", "context-length", "dtype", "memory"}
ONLY = tuple(check for check in CHECKS if check.id in ASKED)

HOSTS = {f"host of {size} MiB": size * MIB for size in (128, 360, 400, 450, 600, 900, 1500, 4096)}
GPUS = {f"GPU with {size} MiB free": size * MIB for size in (256, 1100, 1200, 1400, 2048, 4096, 8192)}
PROFILES: dict[str, dict[str, Any]] = {
    "plain": {},
    "the longest context": {"max-model-len": 65536},
    "a cache too small": {"kv-cache-memory-bytes": "1 MiB"},
    "a cache too large": {"kv-cache-memory-bytes": "64 GiB"},
    "large batches": {"max-num-seqs": 1024, "max-num-batched-tokens": 16384},
    "everything": {"max-model-len": 65536, "max-num-seqs": 1024, "kv-cache-memory-bytes": "64 GiB"},
    "a small share": {"gpu-memory-utilization": 0.2},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home.at(tmp_path_factory.mktemp("home")).create()
    write_checkpoint(home.models / "long", vocab_size=32000, hidden_size=256, head_dim=64, num_hidden_layers=4,
                     max_position_embeddings=65536)  # fmt: skip
    return home


def host(memory: int) -> Host:
    return Host(cores=2, memory_bytes=max(memory, GIB), memory_available_bytes=memory)


def card(uuid: str, free: int, total: int = 8 * GIB) -> Gpu:
    who = (GpuProcess(pid=4242, name="python3", memory_bytes=total - free),)
    return Gpu(uuid=uuid, index=0, name="NVIDIA L4", memory_bytes=total, memory_free_bytes=free,
               compute_capability=(8, 9), processes=who)  # fmt: skip


def machine(*gpus: Gpu, memory: int = 64 * GIB) -> Inventory:
    return Inventory(gpus=gpus, driver_version="580.1", cuda_version="13.0", host=host(memory), problem=None)


def look(home: Home, inventory: Inventory, changes: dict[str, Any]) -> Report:
    document = apply_patch({"name": "chat", "model": {"path": "long"}}, changes)
    return run(PreflightContext(home=home, document=document, environ={}, inventory=inventory), ONLY)


def memory_error(report: Report) -> Finding | None:
    return next((finding for finding in report.findings if finding.id == "memory-too-small"), None)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("where", [*HOSTS, *GPUS])
def test_a_fix_that_is_offered_works(models: Home, where: str, profile: str) -> None:
    inventory = machine(memory=HOSTS[where]) if where in HOSTS else machine(card("GPU-0", GPUS[where]))
    changes = PROFILES[profile]
    finding = memory_error(look(models, inventory, changes))
    if finding is None:
        return
    assert finding.field in ("max-model-len", "kv-cache-memory-bytes")
    assert finding.fix
    if finding.fix.patch is None:
        assert "model" in finding.fix.text
        return
    after = look(models, inventory, {**changes, **finding.fix.patch})
    assert memory_error(after) is None, (finding.fix, after.findings)


def test_who_holds_the_memory_is_said_by_name(models: Home) -> None:
    finding = memory_error(look(models, machine(card("GPU-0", 280 * MIB)), {}))
    assert finding is not None
    assert "in use by python3 (4242): 7.7 GiB" in finding.evidence
    assert finding.fix is not None
    assert "End python3 (4242)" in finding.fix.text


def test_another_gpu_with_room_is_offered(models: Home) -> None:
    first, second = (f"GPU-{number:08x}-0000-0000-0000-000000000000" for number in (1, 2))
    inventory = machine(card(first, 300 * MIB), card(second, 7 * GIB))
    finding = memory_error(look(models, inventory, {"device": first}))
    assert finding is not None
    assert finding.fix is not None
    assert finding.fix.patch == {"device": second}


def test_a_share_of_the_gpu_that_is_too_small_is_raised(models: Home) -> None:
    """No context is shortened because a number is missing."""
    report = look(models, machine(card("GPU-0", 8 * GIB)), {"gpu-memory-utilization": 0.04})
    finding = memory_error(report)
    assert finding is not None
    assert finding.fix is not None
    assert finding.fix.patch == {"gpu-memory-utilization": 0.95}


def test_the_host_s_memory_is_the_gpu_s_where_they_share_it(models: Home) -> None:
    """What the engine's process takes of the host counts as well there."""
    own = card("GPU-0", 8 * GIB)
    shared = msgspec.structs.replace(own, memory_kind="unified")
    plans = [look_at_plan(models, machine(gpu)) for gpu in (own, shared)]
    assert plans[0].kind == "dedicated"
    assert plans[1].kind == "unified"
    assert plans[1].workspace.runtime > plans[0].workspace.runtime


def look_at_plan(home: Home, inventory: Inventory) -> Any:
    document = {"name": "chat", "model": {"path": "long"}}
    return subject_of(PreflightContext(home=home, document=document, environ={}, inventory=inventory)).effective.memory


def test_something_stays_free_of_memory_that_others_need_too(models: Home) -> None:
    """Of a host, and of a GPU that shares it; of a GPU's own the profile's share decides."""
    whole = {"gpu-memory-utilization": 1.0}
    own = card("GPU-0", 8 * GIB)
    shared = msgspec.structs.replace(own, memory_kind="unified")
    subject = {"name": "chat", "model": {"path": "long"}}

    def available(inventory: Inventory) -> int:
        context = PreflightContext(home=models, document=apply_patch(subject, whole), environ={}, inventory=inventory)
        return subject_of(context).effective.memory.available_bytes

    assert available(machine(own)) == 8 * GIB
    assert available(machine(shared)) == 8 * GIB - 256 * MIB
    assert available(machine(memory=4 * GIB)) == 4 * GIB - 4 * GIB // 20


@pytest.fixture(scope="module")
def hybrids(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A model whose six recurrent layers carry 12 MiB for each sequence."""
    home = Home.at(tmp_path_factory.mktemp("hybrids")).create()
    write_checkpoint(home.models / "long", "qwen3_next", num_hidden_layers=8, max_position_embeddings=8192,
                     linear_num_value_heads=32, linear_num_key_heads=16, linear_key_head_dim=128,
                     linear_value_head_dim=128)  # fmt: skip
    return home


@pytest.mark.parametrize(
    ("memory", "id"), [(3 * GIB, "too-many-states"), (9 * GIB, "few-state-copies"), (64 * GIB, None)]
)
def test_states_that_leave_too_little_are_told_with_how_many_fit(hybrids: Home, memory: int, id: str | None) -> None:
    report = look(hybrids, machine(card("GPU-0", memory, memory)), {"max-model-len": 4096})
    found = {finding.id: finding for finding in report.findings}
    assert set(found) == ({id} if id else set())
    if id is None:
        return
    finding = found[id]
    assert (finding.field, finding.value) == ("max-num-seqs", 256)
    assert finding.fix is not None
    fewer = finding.fix.patch["max-num-seqs"]
    assert 16 < fewer < 256
    fixed = look(hybrids, machine(card("GPU-0", memory, memory)), {"max-model-len": 4096, "max-num-seqs": fewer})
    assert not fixed.findings


@pytest.mark.parametrize("prefixes", [True, False])
def test_it_is_said_how_many_states_fit(hybrids: Home, prefixes: bool) -> None:
    """So many do, and not one more; the fix leaves room for copies only where these are of use."""

    def findings(sequences: int) -> dict[str, Finding]:
        changes = {"max-model-len": 4096, "max-num-seqs": sequences, "prefix-caching": prefixes}
        return {each.id: each for each in look(hybrids, machine(card("GPU-0", 3 * GIB, 3 * GIB)), changes).findings}

    finding = findings(256)["too-many-states"]
    found = re.search(r"([\d,]+) do\b", finding.message)
    assert found
    most = int(found[1].replace(",", ""))
    assert "too-many-states" not in findings(most)
    assert "too-many-states" in findings(most + 1)
    assert finding.fix is not None
    fewer = finding.fix.patch["max-num-seqs"]
    assert fewer < most if prefixes else fewer == most
    assert not findings(fewer)


def test_states_are_not_blamed_for_what_else_does_not_fit(hybrids: Home) -> None:
    report = look(hybrids, machine(card("GPU-0", GIB // 4, GIB)), {"max-num-seqs": 2})
    assert [finding.id for finding in report.findings] == ["memory-too-small"]
