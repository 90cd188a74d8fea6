"""vLLM as an engine: which one is installed, its command line and environment from a profile, its log into phases."""
