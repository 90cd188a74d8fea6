"""Console subject: models."""
