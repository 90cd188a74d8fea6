"""One file per model family, over the shared layers."""
