"""A preflight that is judged by a recording of hardware says so."""

from __future__ import annotations

from pathlib import Path

from appliance.hardware import inventory
from appliance.home import Home
from appliance.preflight import PreflightContext, run
from appliance.profile.schema import BUNDLED_MODEL
from tests.hardware.recorded import RECORDINGS

DOCUMENT = {"schema": 1, "name": "chat", "model": {"path": BUNDLED_MODEL}}


def ids(home: Home, environ: dict[str, str]) -> list[str]:
    context = PreflightContext(home=home, document=DOCUMENT, environ=environ, inventory=inventory(environ=environ))
    return [finding.id for finding in run(context).findings]


def test_a_recording_is_named_with_how_to_do_without_it(home: Home) -> None:
    """What is found of the recorded machine is found all the same; the real one needs no such word."""
    environ = {"INGOT_HARDWARE": str(RECORDINGS / "gpu-lost.json")}
    found = ids(home, environ)
    assert found[: found.index("gpu-unreadable")].count("hardware-replayed") == 1
    assert "hardware-replayed" not in ids(home, {})


def test_what_is_no_recording_judges_nothing(home: Home, tmp_path: Path) -> None:
    """Nothing was replayed, and nobody says so; why there is no GPU fits into a sentence."""
    environ = {"INGOT_HARDWARE": str(tmp_path / "missing.json")}
    found = inventory(environ=environ)
    context = PreflightContext(home=home, document=DOCUMENT, environ=environ, inventory=found)
    report = run(context)
    [finding] = report.findings
    assert (finding.id, finding.field) == ("hardware-recording", "INGOT_HARDWARE")
    assert report.plan is not None
    assert report.plan.device.why.endswith("missing.json cannot be read: No such file or directory")
