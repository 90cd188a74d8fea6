"""Every operation of the engine, with its backends; and how a backend is chosen."""
