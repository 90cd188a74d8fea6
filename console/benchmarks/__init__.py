"""Console subject: benchmarks."""
