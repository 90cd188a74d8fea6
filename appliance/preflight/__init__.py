"""Checks that find what would fail before anything heavy starts."""
