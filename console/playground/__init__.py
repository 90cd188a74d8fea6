"""Console subject: playground."""
