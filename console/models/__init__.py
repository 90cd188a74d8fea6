"""The models that are here, and whether they can run."""
