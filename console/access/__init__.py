"""Console subject: access."""
