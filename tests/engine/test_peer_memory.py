"""Memory that GPUs share, by a driver that is not there: what the ranks agree on, and that none of it is left."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import pytest
import torch

from appliance.engine import peer_memory
from appliance.engine.peer_memory import PeerMemoryError, open_shared
from kernels.all_reduce.shared import Shared
from tests.parity.ranks import ThreadGroup, together

CPU = torch.device("cpu")


class Driver:
    """Knows each address by the mark that was written there. `fails` is what a call of that name in one rank raises."""

    def __init__(self) -> None:
        self.marks: dict[int, int] = {}
        self.opened: list[int] = []
        self.fails: dict[str, int] = {}  # call -> the rank in which it fails
        self.rank = threading.local()
        self._lock = threading.Lock()

    def call(self, name: str, *arguments: Any) -> None:
        if self.fails.get(name) == self.rank.value:
            raise PeerMemoryError(f"{name} says no")
        with self._lock:
            getattr(self, name)(*arguments)

    def cuMemAlloc_v2(self, start: Any, _size: Any) -> None:
        start._obj.value = (len(self.marks) + 1) << 20
        self.marks[start._obj.value] = 0

    def cuMemsetD8_v2(self, start: Any, value: Any, _size: Any) -> None:
        self.marks[start.value] = value.value

    def cuCtxSynchronize(self) -> None: ...

    def cuIpcGetMemHandle(self, handle: Any, start: Any) -> None:
        ctypes.memmove(handle._obj.bytes, start.value.to_bytes(8, "little"), 8)

    def cuIpcOpenMemHandle_v2(self, start: Any, handle: Any, _flags: Any) -> None:
        start._obj.value = int.from_bytes(bytes(handle.bytes)[:8], "little")
        self.opened.append(start._obj.value)

    def cuIpcCloseMemHandle(self, start: Any) -> None:
        self.opened.remove(start.value)

    def cuMemFree_v2(self, start: Any) -> None:
        assert start.value not in self.opened, "another rank has it open"
        del self.marks[start.value]

    def cuMemcpyDtoH_v2(self, found: Any, start: Any, size: Any) -> None:
        ctypes.memset(found._obj, self.marks[start.value], size.value)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.delenv("NCCL_P2P_DISABLE", raising=False)
    monkeypatch.setattr(peer_memory, "_call", driver.call)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda device, peer: True)
    return driver


def opened(driver: Driver, count: int = 2) -> tuple[list[Shared | None], list[str]]:
    """What each rank has, and what all of them say."""
    said: list[str] = []

    def of_rank(group: ThreadGroup) -> Shared | None:
        driver.rank.value = group.rank
        return open_shared(group, CPU, said.append)

    return list(together(count, of_rank)), said


@pytest.mark.parametrize("count", [2, 4])
def test_all_ranks_have_the_memory_of_all(driver: Driver, count: int) -> None:
    found, said = opened(driver, count)
    assert not said
    addresses = [shared.addresses.tolist() for shared in found if shared is not None]
    assert len(addresses) == count
    assert all(each == addresses[0] for each in addresses)
    assert set(addresses[0][:count]) == set(driver.marks)
    assert [shared.rank for shared in found if shared is not None] == list(range(count))


@pytest.mark.parametrize(
    "call", ["cuMemAlloc_v2", "cuMemsetD8_v2", "cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2", "cuMemcpyDtoH_v2"]
)
@pytest.mark.parametrize("rank", [0, 1])
def test_where_one_cannot_no_rank_does_and_nothing_is_left(driver: Driver, call: str, rank: int) -> None:
    driver.fails[call] = rank
    found, said = opened(driver)
    assert found == [None, None]
    assert len(said) == 2
    assert any(call in each for each in said)
    assert not driver.opened
    assert not driver.marks


def test_wrong_bytes_are_seen(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def zeros(found: Any, _start: Any, size: Any) -> None:
        ctypes.memset(found._obj, 0, size.value)

    monkeypatch.setattr(driver, "cuMemcpyDtoH_v2", zeros)
    assert opened(driver)[0] == [None, None]
    assert not driver.marks


def test_nccls_own_switch_holds(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    found, said = opened(driver)
    assert found == [None, None]
    assert all("NCCL_P2P_DISABLE" in each for each in said)
    assert not driver.marks
