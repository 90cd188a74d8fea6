"""The only place that starts, stops or reads an engine: `base` says what can be asked, `process` and `docker` do it."""
