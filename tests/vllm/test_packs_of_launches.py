"""A pack is made of what a launch wrote down of itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from appliance.caches.collect import make_pack
from appliance.caches.launched import last_launch
from appliance.home import Home
from appliance.launches.folder import LaunchFolder
from appliance.protocol import LaunchRecord, State
from appliance.vllm.cache_packs import record
from appliance.vllm.cache_packs.facts import Facts
from appliance.vllm.cache_packs.pack import PackError
from appliance.vllm.cache_packs.working_copy import place_of
from tests.vllm.compiled import FACTS


def launched(
    home: Home,
    number: int,
    document: dict[str, Any],
    ready_after_s: float | None,
    of: Facts | None,
    caches: str = "vllm",
) -> None:
    folder = LaunchFolder.create(home, f"2026-11-26-{number:04d}")
    folder.write_profile(document)
    folder.write_record(
        LaunchRecord(id=folder.id, profile=document["name"], started=float(number), ready_after_s=ready_after_s,
                     state=State.STOPPED)
    )  # fmt: skip
    if of is not None:
        record.write(folder, home.root / "caches" / caches, of)


def test_a_pack_is_of_the_last_launch_that_became_ready_as_the_profile_stands(home: Home, tmp_path: Path) -> None:
    document = {"schema": 1, "name": "chat", "engine": "vllm", "model": {"path": "tiny"}}
    source = tmp_path / "profile.json"
    source.write_text(json.dumps(document))
    for number, (ready, of) in enumerate([(50.0, structs.replace(FACTS, driver="570")), (None, FACTS), (20.0, None)]):
        launched(home, number, document, ready, of)
    launched(home, 7, document | {"dtype": "float16"}, 9.0, FACTS)
    assert last_launch(str(source), home).facts.driver == "570"
    launched(home, 8, document, 90.0, FACTS)
    launched(home, 9, document, 30.0, FACTS)
    found = last_launch(str(source), home)
    assert (found.facts, found.cold_s, found.caches) == (FACTS, 90.0, home.root / "caches" / "vllm")


def test_what_other_versions_have_compiled_since_is_not_packed_as_its_own(home: Home, tmp_path: Path) -> None:
    """All launches without a pack share their caches."""
    document = {"schema": 1, "name": "chat", "engine": "vllm", "model": {"path": "tiny"}}
    source = tmp_path / "profile.json"
    source.write_text(json.dumps(document))
    upgraded = structs.replace(FACTS, versions={**FACTS.versions, "torch": "2.14.0"})
    launched(home, 1, document | {"name": "other"}, 9.0, upgraded)
    launched(home, 2, document, 90.0, FACTS)
    launched(home, 3, document | {"name": "other"}, 9.0, structs.replace(FACTS, model="sha256:2"))
    assert last_launch(str(source), home).facts == FACTS
    launched(home, 4, document | {"name": "other"}, None, upgraded)  # it compiled before it failed
    with pytest.raises(PackError) as raised:
        last_launch(str(source), home)
    assert raised.value.code == "other-versions"
    launched(home, 5, document, 70.0, upgraded)
    assert last_launch(str(source), home).facts == upgraded


def test_a_warm_start_is_not_how_long_a_cold_one_takes(home: Home, tmp_path: Path, caches: Path) -> None:
    """Where a pack is made of what came from a pack."""
    document = {"schema": 1, "name": "chat", "engine": "vllm", "model": {"path": "tiny"}}
    source = tmp_path / "profile.json"
    source.write_text(json.dumps(document))
    pack = make_pack(caches, home.cache_packs / "one", profile="chat", cold_s=116.2, facts=FACTS)
    launched(home, 1, document, 38.0, FACTS, place_of(pack, home.root).name)
    assert last_launch(str(source), home).cold_s == 116.2


@pytest.mark.parametrize(("change", "code"), [({"engine": "native"}, "engine"), ({"name": "other"}, "not-launched")])
def test_there_is_none_of_what_compiles_nothing_or_never_ran(
    home: Home, tmp_path: Path, change: dict[str, Any], code: str
) -> None:
    source = tmp_path / "profile.json"
    source.write_text(json.dumps({"name": "chat", "engine": "vllm", "model": {"path": "tiny"}} | change))
    with pytest.raises(PackError) as raised:
        last_launch(str(source), home)
    assert raised.value.code == code


@pytest.mark.parametrize("raw", [b"{", b"\xff", b'{"caches": "../../etc", "facts": {}}'])
def test_what_was_written_down_badly_is_none(home: Home, raw: bytes) -> None:
    folder = LaunchFolder.create(home, "2026-11-26-0001")
    folder.compiled.write_bytes(raw)
    assert record.read(folder) is None
