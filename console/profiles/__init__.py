"""Console subject: profiles."""
