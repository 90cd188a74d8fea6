"""The only code that starts, stops or reads an engine: `base` is the interface, `process` and `docker` implement it."""
