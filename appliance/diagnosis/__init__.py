"""What the log of a failed launch means: cause, evidence, fix."""
