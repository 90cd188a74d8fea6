"""The profile document: its settings, their defaults and where each effective value came from."""
