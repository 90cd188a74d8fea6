"""Console subject: backups."""
