"""The first page: the engine now, what it is doing, and how to call it."""
