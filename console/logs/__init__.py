"""The engine's log: numbered lines of any size of file, live in a page, and `ingot logs`."""
