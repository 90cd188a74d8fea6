"""Strict tools in formats that write parameters in tags: whatever a schema is, it is bound, left free, or refused."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from appliance.serving.errors import ApiError
from appliance.serving.fields import Ignored
from appliance.serving.parsers.registry import FORMATS
from appliance.serving.reading import ModelFormats
from appliance.serving.served_model import ServedModel
from appliance.serving.structured import strict_form
from appliance.serving.tools import ToolUse, check_tools

TAGS = ("qwen3-coder", "minimax-m2", "glm-4.5", "dsml")


def use(parameters: Any) -> ToolUse:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": True}}
    return check_tools([tool], None, None, Ignored(strict=True))


def of(value: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": value}, "required": ["x"], "additionalProperties": False}


async def grammar(model: ServedModel, name: str, parameters: Any) -> str:
    form = strict_form(use(parameters), ModelFormats(FORMATS[name], None), {}, "")
    assert form is not None
    return await model.grammar(form)


@pytest.mark.parametrize(
    "parameters",
    [
        {**of({"type": "string"}), "required": [["x"]]},
        {**of({"type": "string"}), "required": 5},
        of({"type": "string", "minLength": "a"}),
        of({"type": "string", "maxLength": None}),
        of({"type": "string", "enum": 5}),
        of({"anyOf": [{"enum": 5}, {"type": "string"}]}),
        of({"anyOf": "a"}),
        of({"type": 5}),
        of({"$ref": "#/nope"}),
        of({"type": "string", "pattern": "("}),
        of({"type": "integer", "minimum": 3, "maximum": 2}),
    ],
    ids=json.dumps,
)
async def test_what_is_no_schema_is_refused_by_its_path(model: ServedModel, parameters: Any) -> None:
    for name in ("hermes", *TAGS):
        with pytest.raises(ApiError) as refused:
            await grammar(model, name, parameters)
        assert (refused.value.status, refused.value.param) == (400, "tools[0].function.parameters"), name


async def test_a_schema_that_explodes_takes_no_time(model: ServedModel) -> None:
    again = {"anyOf": [{"$ref": "#/$defs/a"}] * 10}
    before = time.process_time()
    for name in TAGS:
        try:
            await grammar(model, name, {**of({"$ref": "#/$defs/a"}), "$defs": {"a": again}})
        except ApiError as error:
            assert error.status == 400  # noqa: PT017  it may be refused, too
    assert time.process_time() - before < 5
