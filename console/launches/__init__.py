"""Console subject: launches."""
