"""Console subject: logs."""
