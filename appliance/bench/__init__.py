"""`ingot bench`: a load on any OpenAI-compatible server, timed as a client sees it."""
