"""The playground in a real browser: an answer that is cut by leaving the page, and settings that cannot be used."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.scripted_console import ScriptedConsole
from tests.running import wait_for


@pytest.fixture
def tab(scripted_tab: Page, scripted: ScriptedConsole) -> Page:
    scripted.door.words = ["Half ", "an answer"]
    scripted_tab.goto(f"{scripted.url}/playground")
    expect(scripted_tab.locator("#chat:not([inert]) #chat-send")).to_be_enabled()
    return scripted_tab


def ask(page: Page, words: str) -> None:
    page.locator("#chat-input").fill(words)
    page.locator("#chat-send").click()


def test_a_question_pressed_before_the_script_has_run_is_not_lost(scripted_tab: Page, scripted: ScriptedConsole):
    def late(route: Route) -> None:
        scripted_tab.wait_for_timeout(1000)
        route.continue_()

    scripted.door.words = ["An answer"]
    scripted_tab.route("**/playground.js*", late)
    scripted_tab.goto(f"{scripted.url}/playground", wait_until="commit")
    scripted_tab.locator(".chat-suggestion").first.click()
    expect(scripted_tab.locator(".chat-answer")).to_contain_text("An answer")


def test_leaving_in_the_middle_of_an_answer_keeps_what_came(tab: Page, scripted: ScriptedConsole):
    """Back on the page: the text so far, a word on why it ends there, no error, and one press to ask again."""
    ask(tab, "Why?")
    expect(tab.locator(".chat-answer")).to_contain_text("Half an answer")
    tab.goto(f"{scripted.url}/hardware")
    tab.go_back()
    expect(tab.locator(".chat-answer")).to_contain_text("Half an answer")
    expect(tab.locator("[data-left]")).to_be_visible()
    expect(tab.locator(".chat-foot .callout-bad")).to_have_count(0)
    tab.get_by_role("button", name="Ask again").click()
    expect(tab.locator("#chat-stop")).to_be_visible()
    wait_for("the second question", lambda: len(scripted.door.chats) == 2)
    assert [chat["messages"] for chat in scripted.door.chats] == [[{"role": "user", "content": "Why?"}]] * 2


def test_an_answer_that_the_engine_cuts_is_an_error_in_words(tab: Page, scripted: ScriptedConsole):
    ask(tab, "Why?")
    expect(tab.locator(".chat-answer")).to_contain_text("Half an answer")
    scripted.door.answered.set()
    expect(tab.locator(".chat-foot .callout-bad")).to_be_visible()
    expect(tab.locator(".chat-foot .callout-bad")).not_to_contain_text("TypeError")
    expect(tab.locator("[data-left]")).to_have_count(0)


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("temperature", "5", "2"),
        ("temperature", "-0.1", "0.7"),
        ("seed", "1.5", "-7"),
        ("seed", "9007199254740993", "9007199254740991"),
        ("top_p", "0", "0.95"),
        ("top_k", "2.5", "40"),
        ("max_tokens", "0", "16"),
    ],
)
def test_a_setting_outside_its_range_is_not_sent(
    tab: Page, scripted: ScriptedConsole, name: str, wrong: str, right: str
):
    field = tab.locator(f"#set-{name}")
    about = tab.locator(f"#about-{name}")
    if not field.is_visible():
        tab.locator("#chat-settings-toggle").click()
    field.fill(wrong)
    assert field.get_attribute("aria-invalid") == "true"
    assert about.text_content() == about.get_attribute("data-wanted")
    ask(tab, "Why?")
    expect(tab.locator(".chat-turn")).to_have_count(0)
    field.fill(right)
    assert field.get_attribute("aria-invalid") == "false"
    ask(tab, "Why?")
    expect(tab.locator(".chat-answer")).to_contain_text("Half an answer")
    assert [chat[name] for chat in scripted.door.chats] == [float(right)]


def test_reasoning_is_open_until_the_answer_begins(tab: Page, scripted: ScriptedConsole):
    """Folded once: a reader who opens it again keeps it open, and a visit elsewhere loses nothing of it."""
    scripted.door.deltas, scripted.door.words = [{"reasoning_content": "First "}, {"reasoning": "<b>this</b>"}], []
    ask(tab, "Why?")
    reasoning = tab.locator("details.chat-reasoning:visible")
    expect(reasoning.locator("div")).to_have_text("First <b>this</b>")
    expect(reasoning).to_have_attribute("open", "")
    tab.locator("#chat-stop").click()
    expect(reasoning).to_have_attribute("open", "")
    scripted.door.words = ["So"]
    tab.get_by_role("button", name="Ask again").click()
    expect(tab.locator(".chat-answer")).to_have_text("So")
    expect(reasoning).not_to_have_attribute("open", "")
    assert [chat["messages"] for chat in scripted.door.chats] == [[{"role": "user", "content": "Why?"}]] * 2
    tab.goto(f"{scripted.url}/hardware")
    tab.go_back()
    expect(tab.locator(".chat-answer")).to_have_text("So")
    expect(reasoning).not_to_have_attribute("open", "")
    reasoning.locator("summary").click()
    expect(reasoning.locator("div")).to_have_text("First <b>this</b>")


def test_a_question_that_got_only_reasoning_is_not_sent_again(tab: Page, scripted: ScriptedConsole):
    """Many templates want the roles to take turns."""
    scripted.door.deltas, scripted.door.words = [{"reasoning_content": "Hm"}], []
    for question in ("Why?", "How?"):
        ask(tab, question)
        expect(tab.locator(".chat-reasoning-text").last).to_have_text("Hm")
        tab.locator("#chat-stop").click()
        expect(tab.locator("#chat-send")).to_be_enabled()
    assert [chat["messages"] for chat in scripted.door.chats] == [
        [{"role": "user", "content": question}] for question in ("Why?", "How?")
    ]


def test_a_tool_call_shows_its_name_and_arguments(tab: Page, scripted: ScriptedConsole):
    scripted.door.words = []
    scripted.door.deltas = [
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "weather", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"Oslo"}'}}]},
        {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "time", "arguments": "{}"}}]},
    ]
    ask(tab, "Is it cold?")
    codes = tab.locator(".chat-calls code")
    expect(codes).to_have_text(["weather", '{"city": "Oslo"}', "time", "{}"])
    tab.goto(f"{scripted.url}/hardware")
    tab.go_back()
    expect(codes).to_have_text(["weather", '{"city": "Oslo"}', "time", "{}"])
