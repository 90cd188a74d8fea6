"""A known cause is told with the name or number that the log gives for it."""

from __future__ import annotations

import pytest

from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.log_text import number_lines

NAMED = (
    ("KeyError: 'layers.7.mlp.gate.weight_packed'", "layers.7.mlp.gate.weight_packed"),
    ("RuntimeError: The server socket has failed to listen on any local network address. port: 31999", "31999"),
    ("ImportError: frobquant version is wrong. Please install bitsandbytes>=9.8.7.", "bitsandbytes>=9.8.7"),
    ("ValueError: The model type foonet3 is a model architecture which is not supported", "foonet3"),
)


@pytest.mark.parametrize(("line", "word"), NAMED)
def test_a_known_cause_is_told_with_what_the_message_names(line: str, word: str) -> None:
    found = diagnose(number_lines(line), failed=True)
    assert found.family is not None
    assert word in found.summary


def test_the_line_that_names_something_counts() -> None:
    """Where the line by which the cause is known names nothing, a later one of the message may."""
    log = (
        "triton.runtime.errors.PTXASError: PTXAS error: codegen error\n`ptxas` stderr:\nptxas /tmp/odd77.ptx: error : x"
    )
    assert "odd77" in diagnose(number_lines(log), failed=True).summary


def test_a_value_of_its_own_is_enough() -> None:
    """Nor is a message quoted that names nothing, or what pydantic was given."""
    own = diagnose(number_lines("api: error: unrecognized arguments: --frobnicate"), failed=True)
    assert own.summary.count("frobnicate") == 1
    bare = diagnose(number_lines("RuntimeError: No CUDA GPUs are available"), failed=True)
    assert "available" in bare.summary
    assert "CUDA GPUs" not in bare.summary
