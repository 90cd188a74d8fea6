"""Starts an engine, watches it, reports on it, and ends it."""
