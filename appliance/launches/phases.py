"""The phases that a launch goes through, by its engine."""

from __future__ import annotations

from appliance.engines import Engine
from appliance.protocol import Phase


def phases_before_ready(engine: Engine) -> list[Phase]:
    """In order; some may be skipped."""
    absent = {
        Phase.CORE_START: engine.own_server,
        Phase.ENGINE_START: not engine.own_server,
        Phase.COMPILE: not engine.torch_compile,
        Phase.READY: True,
    }
    return [phase for phase in Phase if not absent.get(phase)]
