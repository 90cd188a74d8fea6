"""What runs a model, and all that decides how."""

__version__ = "0.1.0"
