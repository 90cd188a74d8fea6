"""The bundled model as one for agents: its template shows tools, calls and results in Hermes' format, and its context
is long enough for their prompts. It writes calls where a request demands them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from appliance.checkpoint.folder import BUNDLED_FOLDER

NAME = "ingot-guide"
CONTEXT = 16_384
TEMPLATE = """\
{{- bos_token }}
{%- if tools %}
  {{- '<|system|>Tools: ' ~ tools | tojson ~ '\nCall one as <tool_call>{"name": ..., "arguments": ...}</tool_call>' }}
  {{- eos_token }}
{%- endif %}
{%- for message in messages %}
  {%- if message.role == 'tool' %}
    {{- '<|user|><tool_response>' ~ message.content ~ '</tool_response>' ~ eos_token }}
  {%- else %}
    {{- '<|' ~ message.role ~ '|>' ~ message.content }}
    {%- for call in message.tool_calls or [] %}
      {{- '<tool_call>' ~ call.function | tojson ~ '</tool_call>' }}
    {%- endfor %}
    {{- eos_token }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{% endif %}
"""


def write_tool_model(folder: Path) -> None:
    shutil.copytree(BUNDLED_FOLDER, folder)
    for name, changes in (
        ("config.json", {"max_position_embeddings": CONTEXT}),
        ("tokenizer_config.json", {"chat_template": TEMPLATE, "model_max_length": CONTEXT}),
    ):
        file = folder / name
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))
