"""The front door: the HTTP process that speaks the OpenAI API."""
