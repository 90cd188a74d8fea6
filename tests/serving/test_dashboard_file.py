"""docs/grafana/ingot.json: it shows what a front door tells, and its panels have places of their own."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.supervisor.scripted import Door

FILE = Path(__file__).parents[2] / "docs" / "grafana" / "ingot.json"
COLUMNS = 24
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",), "gauge": ("",)}


@pytest.fixture(scope="module")
def board() -> dict[str, Any]:
    return dict(json.loads(FILE.read_text()))


def expressions(board: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_every_metric_that_it_shows_is_there(board: dict[str, Any], door: Door) -> None:
    families = text_string_to_metric_families(door.http.get("/metrics").text)
    there = {family.name + suffix for family in families for suffix in SUFFIXES[family.type]}
    queries = [variable["definition"] for variable in board["templating"]["list"] if variable["type"] == "query"]
    shown = set(re.findall(r"ingot:\w+", " ".join(expressions(board) + queries)))
    assert len(shown) > 20
    assert sorted(shown - there) == []


def test_labels_that_it_groups_by_are_there(board: dict[str, Any], door: Door) -> None:
    door.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).raise_for_status()
    door.http.post("/v1/completions", json={"prompt": "x", "max_tokens": -1})
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(door.http.get("/metrics").text):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    grouped = 0
    for expression in expressions(board):
        for by, rest in re.findall(r"by \(([^)]*)\) \((.*)", expression):
            name = re.search(r"ingot:\w+", rest)[0]
            wanted = {label.strip() for label in by.split(",")} - {"instance"}  # Prometheus adds it
            assert wanted <= labels[name], expression
            grouped += 1
    assert grouped > 10


def test_each_expression_is_closed_and_filtered(board: dict[str, Any]) -> None:
    """By the variables job and instance, each metric of it."""
    for expression in expressions(board):
        for opening, closing in ("()", "[]", "{}"):
            assert expression.count(opening) == expression.count(closing), expression
        selectors = re.findall(r"ingot:\w+(\{[^}]*\})?", expression)
        assert selectors
        for selector in selectors:
            assert '"$job"' in selector, expression
            assert '"$instance"' in selector, expression


def test_panels_have_ids_and_places_of_their_own(board: dict[str, Any]) -> None:
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= COLUMNS
        assert panel["datasource"]["uid"] == "${datasource}"
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    for one, other in itertools.combinations(panels, 2):
        assert not overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return all(
        one[at] < other[at] + other[size] and other[at] < one[at] + one[size] for at, size in (("x", "w"), ("y", "h"))
    )
