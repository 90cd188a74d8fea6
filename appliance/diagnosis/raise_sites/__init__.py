"""Where an installed engine raises, asserts and logs errors: harvested from its source once, looked up by message."""
