"""Rotary position embedding. `frequencies.py` makes the table of cosines and sines, `reference.py` and `triton.py` apply
it."""
