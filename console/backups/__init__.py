"""Backups of the state: made while everything runs, checked, and restored as a whole, by `ingot backup` and by page."""
