"""Rotary position embedding. `frequencies.py` makes the table of cosines and sines, `reference.py` applies it."""
