"""What the kernels reach on a GPU, as shares of what the same GPU reached in the same run."""
