"""From the text that a model writes to an answer's parts: content, reasoning, tool calls. One file per format."""
