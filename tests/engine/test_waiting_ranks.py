"""Ranks wait for each other where they say so."""

from __future__ import annotations

import select
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from appliance.models.collectives import Distributed

RANK = """
import sys
import torch
from appliance.models.collectives import Distributed

rank, place = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
group = Distributed()
print("here", flush=True)
sys.stdin.readline()
group.wait_for_all(torch.device("cpu"))
print("all here", flush=True)
"""


def test_no_rank_goes_on_before_all_have_come(tmp_path: Path) -> None:
    """Two processes, by gloo."""
    command = [sys.executable, "-c", RANK]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "meet")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        for first in ranks:
            assert first.stdout is not None
            assert first.stdout.readline() == "here\n"
        for number, rank in enumerate(ranks):
            assert rank.stdin is not None
            rank.stdin.write("\n")
            rank.stdin.flush()
            if number == 0:
                assert select.select([rank.stdout], [], [], 0.3)[0] == []
        assert [rank.communicate(timeout=20)[0] for rank in ranks] == ["all here\n"] * 2
    finally:
        for rank in ranks:
            rank.kill()


def test_what_the_library_has_queued_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's calls return at once: the host waits only where it reads their result."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    events: list[str] = []
    try:
        group = Distributed()
        monkeypatch.setattr(torch.distributed, "all_reduce", lambda x: events.append("queue"))
        monkeypatch.setattr(torch.Tensor, "item", lambda x: events.append("read"))
        group.wait_for_all(torch.device("cpu"))
    finally:
        torch.distributed.destroy_process_group()
    assert events == ["queue", "read"]
