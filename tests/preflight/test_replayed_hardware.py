"""A preflight that is judged by a recording of hardware says so."""

from __future__ import annotations

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
