"""A front door over a core whose answers a test chooses: a request's `seed` is the number of its answer."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from appliance.home import Home
from appliance.serving.openapi.answers import ChatCompletion
from tests.supervisor.scripted import Door, make_profile
from tests.tiny import write_checkpoint

# Writes out what it is given: a test reads the prompt to see what the model would have seen.
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}<|{{ 'user' if m.role == 'tool' else m.role }}|>{{ m | tojson }}"
    "{% for call in m.tool_calls or [] %}"
    "{% for key, value in call.function.arguments.items() %}{{ key }}={{ value }};{% endfor %}{% endfor %}"
    "</s>{% endfor %}{{ thinking }}<|assistant|>"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
    "{% if enable_thinking is defined and enable_thinking is true %}<think>\n{% endif %}"
)


def talking_door(home: Home, answers: list[str], **settings: Any) -> Door:
    folder = home.models / "tiny"
    write_checkpoint(folder, max_position_embeddings=8192)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    profile = make_profile(home, **settings).rename(home.root / "talking.json")
    return Door(home, profile=profile, answers=answers, token_s=0)


def frames(door: Door, **body: Any) -> list[Any]:
    """Of a streamed chat."""
    with door.http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        lines = [line for line in response.iter_lines() if line.startswith("data: ")]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines]


def choice(door: Door, **body: Any) -> dict[str, Any]:
    """The first of a whole answer, which is as documented."""
    response = door.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    msgspec.json.decode(response.content, type=ChatCompletion)
    return dict(response.json()["choices"][0])
