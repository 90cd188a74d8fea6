"""Gathering the rows of an embedding table."""
