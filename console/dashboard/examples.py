"""How to call the API, with the address and the model's name as they are now."""

from __future__ import annotations

from typing import NamedTuple

from appliance.home import Home
from appliance.profile.active import read_active
from appliance.profile.schema import ProfileError
from console.live.view import EngineView

CURL = """\
curl {base}/v1/chat/completions \\
{key}  -H 'Content-Type: application/json' \\
  -d '{{"model": "{model}", "messages": [
    {{"role": "user", "content": "What is Ingot?"}}]}}'"""

PYTHON = """\
from openai import OpenAI

client = OpenAI(
    base_url="{base}/v1",
    api_key={key},
)
answer = client.chat.completions.create(
    model="{model}",
    messages=[
        {{"role": "user", "content": "What is Ingot?"}},
    ],
)
print(answer.choices[0].message.content)"""


class Example(NamedTuple):
    name: str
    text: str


def next_model(home: Home) -> str:
    """The name under which the active profile will be served; empty if there is none."""
    try:
        active = read_active(home)
    except ProfileError:
        return ""  # which the engine reports
    document = active.document if active else {}
    return str(document.get("served-model-name") or document.get("name") or "")


def examples(view: EngineView, next_name: str, *, keyed: bool) -> list[Example]:
    """`next_name` stands in for an engine that serves nothing yet; `keyed`: the front door asks for an API key."""
    model = next(iter(view.models), next_name or "MODEL")
    header = '  -H "Authorization: Bearer $INGOT_API_KEY" \\\n' if keyed else ""
    key = 'os.environ["INGOT_API_KEY"]' if keyed else '"none"'
    python = PYTHON.format(base=view.url, model=model, key=key)
    return [
        Example("curl", CURL.format(base=view.url, model=model, key=header)),
        Example("Python", f"import os\n\n{python}" if keyed else python),
    ]
