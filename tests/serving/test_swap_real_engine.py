"""A swap between two profiles of the bundled model, with the real engine and the official client."""

from __future__ import annotations

import json

import openai

from appliance.home import Home
from appliance.profile.startable import Written, write_startable
from tests.running import engine, fetch, wait_for
from tests.serving.two_models import SOON, launches

NAMES = ("first", "second")


def test_both_models_answer_in_turn(home: Home) -> None:
    home.create()
    documents = [{"schema": 1, "name": name, "model": {"path": "bundled"}, "on-request": SOON} for name in NAMES]
    write_startable(home, [Written(revision="r1", saved=1, document=document) for document in documents])
    profile = home.root / "first.json"
    profile.write_text(json.dumps(documents[0]))
    with engine(home.root, "--profile", str(profile)) as (_process, url):
        wait_for("the first model is ready", lambda: fetch(f"{url}/health")[0] == 200)
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=60)
        words = []
        for name in ("first", "second", "first"):
            stream = client.chat.completions.create(
                model=name, messages=[{"role": "user", "content": "Hello"}], max_tokens=8, temperature=0, stream=True
            )
            chunks = list(stream)
            assert {chunk.model for chunk in chunks} == {name}
            words.append("".join(chunk.choices[0].delta.content or "" for chunk in chunks))
        assert words[0] == words[1] == words[2] != ""
        assert [model.id for model in client.models.list().data] == ["first", "second"]
    assert [(record.profile, record.requested_by) for record in launches(home)] == [
        ("first", None),
        ("second", "no key"),
        ("first", "no key"),
    ]
