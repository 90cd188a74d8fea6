"""Launches: every attempt to run a revision, read from its folder."""
