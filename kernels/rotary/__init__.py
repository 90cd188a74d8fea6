"""Rotary position embedding: `frequencies.py` makes the table of cosines and sines, by which the others turn."""
