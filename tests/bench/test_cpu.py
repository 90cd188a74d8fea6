"""What the CPU benchmark concludes from its turns, and what it counts as a server's processor time."""

from __future__ import annotations

import subprocess
import sys

from tests.bench.cpu import TURNS, Turn, compare, cpu_s
from tests.bench.table import conclude


def test_the_two_sides_take_turns_and_the_median_of_their_ratios_counts(capsys):
    """A machine that slows down for one turn, or for good, changes speeds and not the verdict."""
    order = []

    def side(name: str, tokens_per_s: float):
        def load(streams: int) -> Turn:
            order.append(name)
            pair = (len(order) - 1) // 2
            slowed = 10 if order.count(name) == 4 and name == "ours" else 1  # one turn, of one side
            return Turn(tokens_per_s / (1 + pair) / slowed, cpu_ms=2.0)

        return load

    figures = compare(8, side("ours", 300.0), side("theirs", 200.0), "bare products", goal=1.5)
    assert order[2:8] == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert len(order) == 2 * (TURNS + 1)
    ratio, *shown = figures
    assert ratio.name == "cpu_8_streams_of_bare_products"
    assert (ratio.value, ratio.ok) == (1.5, True)
    assert [figure.goal for figure in shown] == [None] * 4
    assert [figure.value for figure in shown if figure.unit == "ms"] == [2.0, 2.0]
    assert conclude(figures) == 0
    assert "missed" not in capsys.readouterr().out


def test_processes_that_a_server_started_count_whatever_their_group():
    """The engine core is in a session of its own. The kernel tells its time in hundredths, rounded down."""
    burn = "import sys, time\nwhile time.process_time() < 0.4: pass\nprint(flush=True)\nsys.stdin.read()"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}], start_new_session=True)"
    with subprocess.Popen([sys.executable, "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        server.stdout.readline()
        assert cpu_s(server.pid) >= 0.3
        server.stdin.close()
