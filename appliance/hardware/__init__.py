"""What this machine has: GPUs and their slices, driver, memory."""
