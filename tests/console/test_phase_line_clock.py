"""The phase line is as long as the launch is said to have taken."""

from __future__ import annotations

import msgspec
import pytest

from appliance.protocol import LaunchRecord, PhaseRecord, State
from console.pages import STATIC
from console.phase_line import BEFORE, SHADES, phase_line


def launch(started: float) -> LaunchRecord:
    phases = [
        PhaseRecord(phase="preflight", started=100.0, seconds=3.0, outcome="done"),
        PhaseRecord(phase="weights", started=103.0, seconds=5.0, outcome="failed"),
    ]
    return LaunchRecord(id="a", profile="p", started=started, ended=108.0, state=State.FAILED, phases=phases)


def test_time_before_the_first_phase_has_a_segment():
    """A front door's process that takes 1.9 s to come up: the line ends at 9.9 s, as the text says."""
    line = phase_line(launch(98.1), launch(99.0))
    assert [segment.name for segment in line.segments] == [BEFORE, "preflight", "weights"]
    assert line.seconds == pytest.approx(9.9)
    assert line.last_good_seconds == pytest.approx(9.0)
    assert line.segments[-1].x + line.segments[-1].width == pytest.approx(100, abs=0.1)


def test_a_moment_before_it_has_none():
    assert [segment.name for segment in phase_line(launch(99.99)).segments] == ["preflight", "weights"]


def test_a_phase_has_one_colour_in_both_lines_and_none_is_used_twice():
    """Also where the last good launch had phases that this one did not come to."""
    good = msgspec.structs.replace(
        launch(100.0),
        state=State.READY,
        phases=[
            PhaseRecord(phase=name, started=100.0, seconds=1.0, outcome="done")
            for name in ("core-start", "weights", "cache", "graphs")
        ],
    )
    line = phase_line(launch(98.1), good)
    shades = {segment.name: segment.shade for segment in (*line.segments, *line.last_good)}
    assert [segment.shade for segment in line.segments] == [shades[segment.name] for segment in line.segments]
    assert len(set(shades.values())) == len(shades)
    styles = (STATIC / "pieces.css").read_text()
    assert all(f".phase-shade-{number} " in styles for number in range(SHADES))
