"""OpenAI's Responses API, over the same requests and answers as chat."""
