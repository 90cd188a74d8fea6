"""The score over the real logs, where they are, and what it says where they are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.diagnosis.score import GOAL_SHARE, score
from tests.diagnosis.shared_logs import entries

needs_logs = pytest.mark.skipif(not entries(), reason="the shared start logs are not beside the project")


@needs_logs
def test_real_logs_are_diagnosed_right() -> None:
    """The family and a fix of nearly every failure; of a healthy start nothing."""
    rows = score(entries())
    failures = [row for row in rows if row.expected is not None]
    wrong = [(row.file, row.found.family) for row in failures if not row.right]
    assert len(wrong) <= len(failures) * (1 - GOAL_SHARE), wrong
    assert not [row.file for row in rows if row.expected is None and not row.right]


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.diagnosis.score"],
        env={**os.environ, "INGOT_STARTUP_LOGS": str(folder)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_the_logs_it_says_where_it_looked(tmp_path: Path) -> None:
    """And fails: nothing was judged."""
    result = run(tmp_path)
    assert result.returncode == 1
    assert str(tmp_path) in result.stderr


def test_a_missed_goal_fails(tmp_path: Path) -> None:
    """With the figures as the last line."""
    (tmp_path / "a.log").write_text("OSError: [Errno 98] Address already in use\n")
    rows = [{"file": "a.log", "expect": "failure", "category": "memory", "accept": ["memory"]}]
    (tmp_path / "index.json").write_text(json.dumps(rows))
    result = run(tmp_path)
    assert result.returncode == 1
    figures = json.loads(result.stdout.splitlines()[-1])
    assert figures["failures-told-right"] == {"value": 0.0, "goal": 0.95, "ok": False}
    assert "wrong" in result.stdout
