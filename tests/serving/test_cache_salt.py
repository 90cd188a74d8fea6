"""What a prompt is cached under: by API key where the profile says so, by the request's own salt, or by both."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from appliance.serving.served_model import ServedModel


def salt(mode: str, key_id: str, asked: str | None) -> str:
    model: Any = SimpleNamespace(salts_by_key=mode == "api-key")
    return ServedModel.cache_salt(model, key_id, asked)


def test_without_either_everybody_shares_one_cache():
    assert salt("none", "k1", None) == salt("none", "k2", None) == salt("api-key", "", None) == ""


def test_keys_and_salts_of_requests_each_part_the_cache():
    found = [
        salt(mode, key_id, asked)
        for mode, key_id, asked in (
            ("none", "k1", "s"), ("api-key", "k1", None), ("api-key", "k2", None), ("api-key", "k1", "s"),
            ("api-key", "k2", "s"), ("api-key", "k1s", None), ("api-key", "", "k1"),
        )
    ]  # fmt: skip
    assert len(set(found)) == len(found)
    assert all(found)


@pytest.mark.parametrize("asked", [None, "s"])
def test_a_salt_is_the_same_each_time_and_tells_nothing_of_the_key(asked):
    assert salt("api-key", "k1", asked) == salt("api-key", "k1", asked)
    assert "k1" not in salt("api-key", "k1", asked)
