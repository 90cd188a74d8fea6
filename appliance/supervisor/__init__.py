"""Starts an engine, watches it, tells what it does, and ends it."""
