"""Compiling every declared variant for one architecture, without a GPU."""
