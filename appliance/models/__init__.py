"""Models: one decoder over the shared layers, built as the config of any family describes it."""
