"""/docs: the whole document as one page that needs nothing from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from appliance.serving.openapi.page import documentation_page
from tests.supervisor.scripted import Door


class Page(HTMLParser):
    """Its tags, ids and links, and the text of each section."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.ids: list[str] = []
        self.links: set[str] = set()
        self.sections: dict[str, list[str]] = {}
        self._section = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.add(tag)
        self.attributes |= given.keys()
        if "id" in given:
            self.ids.append(given["id"])
        if "href" in given:
            self.links.add(given["href"])
        if tag == "section":
            self._section = given["id"]
            self.sections[self._section] = []

    def handle_data(self, data: str) -> None:
        if self._section and data.strip():
            self.sections[self._section].append(data.strip())


@pytest.fixture(scope="module")
def document(door: Door) -> dict[str, Any]:
    return dict(door.http.get("/openapi.json").json())


@pytest.fixture(scope="module")
def page(door: Door) -> Page:
    return Page(door.http.get("/docs").text)


def test_every_path_and_field_is_on_the_page(document: dict[str, Any], page: Page) -> None:
    schemas = document["components"]["schemas"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            section = page.sections[operation["operationId"]]
            assert {method.upper(), path, *operation["responses"]} <= {*section}
            assert {each["name"] for each in operation["parameters"]} <= {*section}
            if "requestBody" in operation:
                reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
                assert schemas[reference.rpartition("/")[2]]["properties"].keys() <= {*section}
    for name, schema in schemas.items():
        if name in page.sections:
            assert schema.get("properties", {}).keys() <= {*page.sections[name]}


def test_types_limits_and_defaults_are_in_words(page: Page) -> None:
    chat = page.sections["chat_completions"]
    row = chat[chat.index("temperature") :]
    assert row[1:4] == ["number", "0 to 2", "1.0"]
    assert chat[chat.index("messages") :][1:4] == ["required", "list of objects", "1 to 20,000 items"]
    assert chat[chat.index("cache_salt") + 2] == "1 to 1,024 characters"


def test_every_link_leads_somewhere_on_this_server(page: Page) -> None:
    anchors = {link for link in page.links if link.startswith("#")}
    assert page.links - anchors == {"/openapi.json"}
    assert {link[1:] for link in anchors} <= {*page.ids}
    assert len({*page.ids}) == len(page.ids)


def test_the_page_needs_nothing_else(door: Door, page: Page) -> None:
    response = door.http.get("/docs")
    assert page.tags.isdisjoint({"script", "link", "img", "iframe", "form"})
    assert {name for name in page.attributes if name in ("src", "style") or name.startswith("on")} == set()
    assert not re.search(r"url\(|@import", response.text)
    assert "default-src 'none'" in response.headers["content-security-policy"]


def test_words_of_the_document_are_text(document: dict[str, Any]) -> None:
    """Whatever they contain."""
    operation = document["paths"]["/health"]["get"]
    changed = {**operation, "summary": "<script>alert(1)</script>", "operationId": '"><script>'}
    text = documentation_page({**document, "paths": {"/health": {"get": changed}}})
    assert "script" not in Page(text).tags
