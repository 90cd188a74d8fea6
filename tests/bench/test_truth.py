"""What `make bench-truth` builds on: that its rows are whole, and that it knows an exception from a warning."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.bench.faults.places import PLACES
from tests.bench.truth import FAULTS, MANY
from tests.bench.truth_log import LogClock
from tests.bench.truth_page import says, text_of
from tests.bench.truth_run import write_wrapper
from tests.running import wait_for

HEALTHY = "(APIServer pid=1) WARNING 11-20 [system_utils.py:255] This can cause errors like `OSError: [Errno 24]`."


def test_every_row_says_what_is_right_and_where_it_happens() -> None:
    assert len(FAULTS) >= MANY
    assert len({(fault.engine, fault.name) for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        told = {"saving": True, "preflight": fault.expect.finding}.get(fault.told, fault.expect.family)
        assert told, fault.name
        assert fault.expect.words, fault.name
        assert fault.expect.causes or fault.told in ("saving", "preflight"), fault.name
        assert fault.place in PLACES, fault.name


def test_a_sites_wrapper_adds_its_flags_to_serve_alone(tmp_path: Path) -> None:
    vllm = tmp_path / "vllm"
    vllm.write_text(f"#!{sys.executable}\nimport os, sys\nprint(sys.argv[1:], os.environ.get('VLLM_ODD'))\n")
    vllm.chmod(0o755)
    wrapper = tmp_path / "wrapped" / "vllm"

    def said(*arguments: str) -> str:
        return subprocess.run([wrapper, *arguments], capture_output=True, text=True, check=True).stdout.strip()

    write_wrapper(wrapper, str(vllm), ["--odd=1"], {"VLLM_ODD": "2"})
    assert said("serve", "/m") == "['serve', '/m', '--odd=1'] 2"
    assert said("--version") == "['--version'] None"
    write_wrapper(wrapper, str(vllm))
    assert said("serve", "/m") == "['serve', '/m'] None"


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        (HEALTHY, False),
        ("Traceback (most recent call last):", True),
        (
            "(Worker pid=3) ERROR 11-20 [multiproc_executor.py:953] ValueError: Load format `quick`",
            True,
        ),
        ("vllm serve: error: argument --compilation-config/-cc: 1 validation error for CompilationConfig", True),
    ],
)
def test_the_first_exception_is_the_moment_at_which_its_line_was_written(
    tmp_path: Path, line: str, counts: bool
) -> None:
    path = tmp_path / "engine.log"
    clock = LogClock(path)
    path.write_text(f"{HEALTHY}\n")
    wait_for("the first line is seen", lambda: len(clock.lines) == 1)
    before = time.time()
    with path.open("a") as file:
        file.write(f"{line}\n")
    wait_for("the second line is seen", lambda: len(clock.lines) == 2)
    clock.close()
    found = clock.first_exception(None)
    assert (found is not None) == counts
    assert found is None or before <= found <= time.time()


def test_a_page_is_read_as_a_person_reads_it() -> None:
    text = text_of("<h3>The disk &amp; the\n folder <code>m&lt;1</code></h3>")
    assert text == "The disk & the folder m<1"
    assert says(text, ["DISK", r"m<\d"])
    assert not says(text, ["disk", "memory"])
