"""Failures to be provoked, as rows: how each is brought about, and what Ingot must then say of it."""
