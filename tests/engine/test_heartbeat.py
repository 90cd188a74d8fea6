"""The thread that reports that the core is alive, when the core ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import zmq

# The core's own main with a heart that beats without pause, and in place of the engine one that ends at once.
CORE = """
import sys, types
from appliance.engine import heartbeat
from appliance.engine.__main__ import main
def run(link, activity, totals):
    link.receive(0.05)
    {ending}
heartbeat.INTERVAL_S = heartbeat.PARENT_CHECK_S = 0
sys.modules["appliance.engine.core"] = types.SimpleNamespace(run=run)
sys.exit(main())
"""


@pytest.mark.parametrize("heard", [True, False])
@pytest.mark.parametrize(("ending", "status", "tracebacks"), [("return", 0, 0), ("raise ValueError", 1, 1)])
def test_a_core_that_ends_stops_its_heartbeat_first(
    tmp_path: Path, heard: bool, ending: str, status: int, tracebacks: int
) -> None:
    """Nothing but a failure's own traceback is printed, and a front door that is gone is not waited for."""
    with zmq.Context() as context, context.socket(zmq.PULL) as front_door:
        if heard:
            front_door.bind(f"ipc://{tmp_path}/from-core")
        command = [sys.executable, "-c", CORE.format(ending=ending), "--connect", str(tmp_path)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == status
    assert ended.stderr.count("Traceback") == tracebacks, ended.stderr
