"""The frame that every page stands in."""

from __future__ import annotations

import pytest

from appliance.protocol import ApplianceState, State
from console.live.view import EngineView
from console.pages import ON_A_PHONE, PLACES


async def test_first_visit_leads_to_set_up(visitor):
    """While nobody can sign in, every page leads to the set-up."""
    answer = await visitor.get("/profiles", follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/setup"


async def test_a_page_has_its_frame(client):
    """A signed-in person sees the rail, the strip and the phone bar, and nothing inline that the policy forbids."""
    answer = await client.get("/")
    assert answer.status_code == 200
    for place in PLACES:
        assert f'href="{place.path}"' in answer.text
    assert 'data-live="strip"' in answer.text
    assert answer.text.count("phone-bar") == 1
    assert len(ON_A_PHONE) == 4
    assert " style=" not in answer.text
    assert "<script>" not in answer.text


@pytest.mark.parametrize("accept", ["text/html", "application/json"])
async def test_an_unknown_page_is_404(client, accept):
    """A wrong address is told as a page or as JSON, and says what to do."""
    answer = await client.get("/nowhere", headers={"Accept": accept})
    assert answer.status_code == 404
    assert "/nowhere" in answer.text
    assert "dashboard" in answer.text.lower()


@pytest.mark.parametrize(("sealed", "said"), [(False, True), (True, False), (None, False)])
async def test_every_page_says_that_the_engine_is_not_sealed(client, console, sealed, said):
    """Only where it may compile: not where it is sealed, and not on the CPU, where there is nothing to seal."""
    appliance = ApplianceState(state=State.READY, since=1.0, version="0", sealed=sealed)
    console.follower.view = EngineView(state=State.READY, reachable=True, appliance=appliance)
    for path in ("/", "/profiles", "/logs", "/hardware"):
        assert ('class="strip-unsealed"' in (await client.get(path)).text) is said
