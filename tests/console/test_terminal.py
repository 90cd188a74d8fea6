"""What `ingot up` prints to: the appliance outlives it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PRINTS = """
import sys
from console.terminal import standard_output
terminal = standard_output()
terminal.print("one"); terminal.print("two")
sys.stderr.write("runs on\\n")
"""


@pytest.mark.parametrize("reader_gone", [True, False], ids=["a pipe that nobody reads", "a full disk"])
def test_an_output_that_takes_nothing_ends_nothing(reader_gone: bool) -> None:
    if reader_gone:
        reader, output = os.pipe()
        os.close(reader)
    else:
        output = os.open("/dev/full", os.O_WRONLY)
    root = Path(__file__).parents[2]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", PRINTS],
        env=buffered, stdout=output, stderr=subprocess.PIPE, text=True, timeout=30, cwd=root,
    )  # fmt: skip
    os.close(output)
    told, *rest = done.stderr.splitlines()
    assert ("Broken pipe" if reader_gone else "No space left on device") in told
    assert rest[0] == "runs on"
    assert done.returncode == 0
