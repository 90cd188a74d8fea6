"""Console subject: hardware."""
