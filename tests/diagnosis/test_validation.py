"""Refusals by pydantic: the error itself is told, not how many there are."""

from __future__ import annotations

import pytest

from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.log_text import number_lines
from appliance.diagnosis.validation import with_problem

NESTED = """\
pydantic_core._pydantic_core.ValidationError: 1 validation error for DraftConfig
  Value error, No folder '/srv/draft' for the draft model.
Check it.
 [type=value_error, input_value=ArgsKwargs((), {'model': ...}), input_type=ArgsKwargs]
"""
REFUSED = """\
{prefix}vllm serve: error: argument --pooler-config: 2 validation errors for PoolerConfig
{prefix}pooling_type.literal['CLS','LAST']
{prefix}  Input should be 'CLS' or 'LAST' [type=literal_error, input_value='ODD', input_type=str]
{prefix}    For further information visit https://errors.pydantic.dev/2.14/v/literal_error
"""


@pytest.mark.parametrize("prefix", ["", "(APIServer pid=7) "])
def test_the_lines_below_a_refused_argument_are_read(prefix: str) -> None:
    found = diagnose(number_lines(REFUSED.format(prefix=prefix)))
    assert found.family == "config"
    assert "pooling_type: Input should be 'CLS' or 'LAST', not 'ODD'" in found.summary
    assert "validation error" not in found.summary


def test_a_message_without_a_field() -> None:
    found = diagnose(number_lines(f"Traceback (most recent call last):\n{NESTED}"))
    assert "'/srv/draft'" in found.summary
    assert "validation error" not in found.summary


@pytest.mark.parametrize("message", ["1 validation error for A", "1 validation error for A\n", "nothing of the kind"])
def test_without_its_lines_the_summary_stays(message: str) -> None:
    assert with_problem("Refused: 1 validation error for A", message) == "Refused: 1 validation error for A"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("type=greater_than_equal, input_value=-7, input_type=int", "Input is odd, not -7"),
        ("type=enum, input_value='odd', input_type=str", "Input is odd"),
        ("type=extra_forbidden, input_value=7, input_type=int", "Input is odd"),
        ("type=string_type, input_value='sk-7f3a', input_type=str", "Input is odd"),
        ("type=literal_error, input_value={'a': 'b'}, input_type=dict", "Input is odd"),
    ],
)
def test_the_value_is_told_where_it_is_a_plain_one(given: str, told: str) -> None:
    """Never what may be a secret, nor what the message says already."""
    message = f"1 validation error for Odd\nname\n  Input is odd [{given}]\n"
    assert with_problem("Refused: 1 validation error for Odd", message) == f"Refused: Odd: name: {told}."
