"""Every operation of the engine: one folder an op, with its reference, its backends and their declarations.

Start at `catalogue.py` (which ops and backends there are), `selection.py` (which one runs here, and why not the
others) and `binding.py` (the chosen functions, as the models call them).
"""
