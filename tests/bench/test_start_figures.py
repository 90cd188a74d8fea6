"""tests/gpu/start.sh without a GPU: what it runs, and which of its figures meet their goals."""

from __future__ import annotations

import pytest

from tests.bench.test_peer_script import script
from tests.gpu.start import Start, figures

RATES = {"cache": 50.0, "bus": 25.0, "disk": 2.0}
PHASES = {"core start": 1.0, "self-test": 0.2}


def start(first_token_s: float = 5.0, weight_rate: float = 24.0, peak_bytes: int = 2_000_000_000) -> Start:
    return Start(first_token_s, PHASES, weight_rate, peak_bytes)


@pytest.mark.parametrize(
    ("starts", "from_disk", "missed"),
    [
        ([start()], start(weight_rate=1.7), set()),
        ([start(6.1)], None, {"first_token_s"}),
        ([start(6.1), start(5.9), start(5.0)], None, set()),
        ([start(weight_rate=19.9)], None, {"weights_of_slower"}),
        ([start(peak_bytes=3_100_000_000)], None, {"host_peak_above_largest_tensor_gb"}),
        ([start()], start(weight_rate=1.5), {"weights_from_disk_of_slower"}),
    ],
)
def test_a_start_is_held_to_its_goals(starts, from_disk, missed):
    """Six seconds, 2 GB above the largest tensor, and four fifths of what the slower of two ways can do."""
    shown, _ = figures(starts, RATES, 1_000_000_000, from_disk)
    assert {figure.name for figure in shown if not figure.ok} == missed
    assert {"phase_core_start_s", "phase_self_test_s"} <= {figure.name for figure in shown}


def test_the_script_casts_for_this_gpu_and_passes_its_options_on(tmp_path):
    done = script(tmp_path, "--starts", "1", name="start.sh")
    assert done.returncode == 0, done.stderr
    assert "ran with nothing: -m tests.gpu.start --arch sm_90 --starts 1" in done.stdout
