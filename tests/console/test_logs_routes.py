"""The log's page and what its script asks for, through the whole console."""

from __future__ import annotations

import html

import pytest

from console.engine_control.base import EngineStatus
from console.logs.index import LogIndex
from tests.console.launch_folders import failed_launch, ready_launch
from tests.console.launch_kinds import refused

OLD, NEW = "20261120-100000-aaaa", "20261120-110000-bbbb"
HOSTILE = [
    "<script>alert(1)</script>",
    "\x1b[31m<img src=x onerror=alert(1)>\x1b[0m",
    "\x1b]8;;javascript:alert(1)\x07click\x1b]8;;\x07",
    "</div></main>' \" onmouseover=x",
    "nul\x00 bell\x07 \u202egnp.exe",
    "data: forged\r\rid: forged",
]


async def test_the_page_shows_the_current_log(client, home):
    """Without a choice the page shows the engine's launch, with its lines as links."""
    ready_launch(home, OLD)
    ready_launch(home, NEW)
    text = (await client.get("/log")).text
    assert f'href="/log?launch={NEW}&amp;line=2#L2"' in text
    assert "reading weights" in text
    assert f'data-position="{NEW}#2"' in text


async def test_an_empty_state_folder_has_a_page(client):
    """It says what will be here and how to begin."""
    answer = await client.get("/log")
    assert answer.status_code == 200
    assert 'class="empty"' in answer.text


async def test_hostile_lines_are_text(client, home):
    """No line becomes markup, a control character or an attribute; a search for it is shown as text too."""
    ready_launch(home, NEW).log(*HOSTILE)
    for url in ("/log", "/log?q=%3Cscript%3E", "/log?level=error"):
        text = (await client.get(url)).text
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert "javascript:" not in text
        assert "\x1b" not in text
        assert "\x00" not in text
    text = html.unescape((await client.get("/log")).text)
    assert "</div></main>' \" onmouseover=x" in text
    assert "nul␀ bell␇ ⟨U+202E⟩gnp.exe" in text


async def test_it_reads_without_scripts(client, home):
    """A plain form searches and filters; a link to a line shows the lines around it."""
    ready_launch(home, NEW).log(*(f"INFO step {number}" for number in range(1, 1001)), "ERROR step over")
    found = (await client.get("/log", params={"q": "step 77"})).text
    assert "step 77" in found
    assert "step 770" in found
    assert "step 1000" not in found
    errors = (await client.get("/log", params={"level": "error"})).text
    assert "step over" in errors
    assert "step 999" not in errors
    around = (await client.get("/log", params={"line": 502})).text
    assert 'log-asked" id="L502"' in around
    assert "step 450<" in around
    assert "step 999<" not in around


async def test_lines_by_range_and_by_number(client, home):
    """What the page's script fetches: exactly the lines asked for, and no more than is there."""
    ready_launch(home, NEW).log(*(f"row {number}" for number in range(3, 501)))
    lines = (await client.get("/log/lines", params={"launch": NEW, "from": 498, "count": 10})).json()
    assert [line["number"] for line in lines] == [498, 499, 500]
    assert lines[0]["segments"] == [["row 498", ""]]
    lines = (await client.get("/log/lines", params={"launch": NEW, "numbers": "3,400,9999"})).json()
    assert [line["number"] for line in lines] == [3, 400]


async def test_matches(client, home):
    """Numbers of the lines that match, how many there are, and up to where was looked."""
    ready_launch(home, NEW).log("WARNING low", "ERROR out", "ERROR down")
    found = (await client.get("/log/matches", params={"launch": NEW, "level": "warning", "q": "O"})).json()
    assert found == {"numbers": [3, 4, 5], "count": 3, "scanned": 5, "processes": []}
    found = (await client.get("/log/matches", params={"launch": NEW, "q": "down", "after": 4})).json()
    assert (found["numbers"], found["scanned"]) == ([5], 5)


@pytest.mark.parametrize(
    ("path", "params", "status"),
    [
        ("/log", {"launch": "../../etc"}, 404),
        ("/log", {"launch": "20260101-000000-ffff"}, 404),
        ("/log/lines", {"launch": "..%2f"}, 404),
        ("/log/lines", {"from": "-1"}, 422),
        ("/log/lines", {"count": "99999"}, 422),
        ("/log/matches", {"level": "loud"}, 422),
        ("/log/lines", {"numbers": ",".join(["1"] * 2001)}, 422),
        ("/log/lines", {"numbers": "1,two"}, 422),
        ("/log/lines", {"numbers": "9" * 5000}, 422),
        ("/log/download", {"launch": "x/y"}, 404),
        ("/log", {"line": "x"}, 422),
    ],
)
async def test_what_is_not_there_or_makes_no_sense(client, home, path, params, status):
    """Each a clear answer with a status that fits."""
    ready_launch(home, NEW)
    answer = await client.get(path, params=params)
    assert answer.status_code == status


async def test_the_download_is_the_file(client, home):
    """Byte for byte, as text that no browser will run, under the launch's name."""
    launch = ready_launch(home, NEW)
    raw = b"\xff\x00<script>\n\x1b[31m" + b"x" * 700_000
    (launch.folder / "engine.log").write_bytes(raw)
    answer = await client.get("/log/download", params={"launch": NEW})
    assert answer.content == raw
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["content-disposition"] == f'attachment; filename="{NEW}.log"'
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_a_launch_without_a_log_says_so(client, home):
    """A launch that preflight refused started no engine: the page says so and offers the log before."""
    failed_launch(home, OLD)
    refused = failed_launch(home, NEW)
    (refused.folder / "engine.log").unlink()
    text = (await client.get("/log")).text
    assert "callout-info" in text
    assert f"/log?launch={OLD}" in text


async def test_a_refused_attempt_does_not_take_the_logs_place(client, home):
    """While an older launch serves, its log is the engine's."""
    ready_launch(home, OLD)
    failed_launch(home, NEW, attempt=True)
    assert f'data-launch="{OLD}"' in (await client.get("/log")).text


@pytest.mark.parametrize("path", ["/log", f"/log/head?launch={NEW}"])
async def test_a_launch_that_has_ended_is_not_called_ready(client, home, path):
    """Its folder may still say so, where its process ended without a word: list and head say what became of it."""
    refused(home, OLD)
    ready_launch(home, NEW)
    text = (await client.get(path)).text
    assert f'<option value="{OLD}" data-outcome="refused"' in text
    assert f'<option value="{NEW}" data-outcome="cut off"' in text
    assert '<span class="log-outcome" data-outcome="cut off"' in text


async def test_a_launch_that_runs_is_called_ready(client, console, control, home):
    control.present = EngineStatus(running=True)
    await console.follower.look()
    ready_launch(home, NEW)
    assert f'<option value="{NEW}" data-outcome="ready"' in (await client.get("/log")).text


async def test_visitors_see_no_log(visitor, home):
    """Every way to the log needs somebody signed in."""
    ready_launch(home, NEW)
    for path in ("/log", "/log/lines", "/log/matches", "/log/download", "/log/head", "/live?topic=log:current"):
        answer = await visitor.get(path, follow_redirects=False)
        assert answer.status_code in (303, 401)


async def test_many_megabytes_are_counted_once(home, console):
    """The store keeps an index between requests, and forgets the least recently used."""
    for number in range(10):
        ready_launch(home, f"20261120-1{number:05}-aaaa")
    first = console.log_store.index("20261120-100000-aaaa")
    assert isinstance(first, LogIndex)
    assert console.log_store.index("20261120-100000-aaaa") is first
    for number in range(1, 9):
        console.log_store.index(f"20261120-1{number:05}-aaaa")
    assert console.log_store.index("20261120-100000-aaaa") is not first
