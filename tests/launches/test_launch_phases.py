"""Each engine's launch has its own phases."""

from __future__ import annotations

from appliance.engine_process.deadlines import FLOORS_S
from appliance.engines import NATIVE, VLLM
from appliance.launches.phases import phases_before_ready
from appliance.protocol import Phase
from appliance.vllm.log_phases import ORDER


def test_the_phases_of_a_native_launch_are_those_with_a_deadline() -> None:
    assert phases_before_ready(NATIVE) == list(FLOORS_S)


def test_the_phases_of_vllm_are_those_read_from_its_log_and_ours_around_them() -> None:
    assert phases_before_ready(VLLM) == [Phase.PREFLIGHT, *ORDER, Phase.SELF_TEST]
