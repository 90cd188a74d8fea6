"""Decides over launches: which profile runs on which engine, whether it may start again, and when it stops."""
