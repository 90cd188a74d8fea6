"""A process of the engine that was killed says nothing: another one tells with which signal it ended."""

from __future__ import annotations

import pytest

from appliance.diagnosis.diagnose import diagnose
from appliance.protocol import EvidenceLine

TEXT = """\
(APIServer pid=7) INFO 11-20 17:35:01 [utils.py:286] non-default args: {'model': 'm'}
(APIServer pid=7) Traceback (most recent call last):
(APIServer pid=7)   File "/x/vllm/v1/engine/utils.py", line 1431, in wait_for_engine_startup
(APIServer pid=7)     raise RuntimeError(
(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): %s
"""


@pytest.mark.parametrize(
    ("processes", "family", "cause"),
    [
        ("{'EngineCore': -9}", "memory", "killed"),
        ("{'EngineCore_DP0': -11}", "kernel-crash", "segmentation-fault"),
        ("{'EngineCore_DP0': 1, 'EngineCore_DP1': -4}", "kernel-crash", "illegal-instruction"),
        ("{}", None, None),
        ("{'EngineCore': 1}", None, None),
    ],
)
def test_a_signal_that_only_a_pointer_tells(processes: str, family: str | None, cause: str | None) -> None:
    lines = [EvidenceLine(number, text) for number, text in enumerate((TEXT % processes).splitlines(), 1)]
    told = diagnose(lines, exit_status=1)
    assert (told.family, told.cause) == (family, cause)
    assert told.evidence[-1].number == 5


def test_one_that_had_spoken_and_is_gone_without_a_status_was_killed() -> None:
    """One that never spoke may have said more in lines that are not at hand."""
    text = "(EngineCore pid=9) INFO 11-20 17:35:02 [core.py:133] Initializing a V1 LLM engine\n" + TEXT % "{}"
    lines = [EvidenceLine(number, line) for number, line in enumerate(text.splitlines(), 1)]
    told = diagnose(lines, exit_status=1)
    assert (told.family, told.cause, told.evidence[-1].number) == ("memory", "killed", 6)
