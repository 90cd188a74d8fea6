"""The native engine: scheduler, paged cache, runner, weights, and the core process."""
