"""How an embedding model's folder says that it pools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.sentence_transformers import read_pooling


def write(folder: Path, kinds: list[str], pooling: dict[str, Any]) -> None:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    modules = [{"path": "1_Pooling", "type": f"sentence_transformers.models.{kind}"} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode_lasttoken": True, "pooling_mode_cls_token": False, "include_prompt": True}, "last"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": "mean"}, "mean"),
    ],
)
def test_what_is_read(tmp_path: Path, pooling: dict[str, Any], expected: str) -> None:
    assert read_pooling(tmp_path) == "last"
    write(tmp_path, ["Transformer", "Pooling", "Normalize"], pooling)
    assert read_pooling(tmp_path) == expected


@pytest.mark.parametrize(
    ("kinds", "pooling"),
    [
        (["Transformer", "Pooling"], {"pooling_mode_cls_token": True}),
        (["Transformer", "Pooling"], {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}),
        (["Transformer", "Pooling"], {}),
        (["Transformer", "Pooling", "Dense"], {"pooling_mode_lasttoken": True}),
    ],
)
def test_what_is_refused(tmp_path: Path, kinds: list[str], pooling: dict[str, Any]) -> None:
    write(tmp_path, kinds, pooling)
    with pytest.raises(CheckpointError) as refused:
        read_pooling(tmp_path)
    assert refused.value.id == "pooling-unsupported"


@pytest.mark.parametrize("content", ["", "{}", "[1]", "[" * 100_000])
def test_a_damaged_list_of_modules(tmp_path: Path, content: str) -> None:
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(CheckpointError):
        read_pooling(tmp_path)
