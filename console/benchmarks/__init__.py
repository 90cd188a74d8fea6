"""The Benchmarks page: a short fixed load against the running engine, measured at its front door and kept."""
