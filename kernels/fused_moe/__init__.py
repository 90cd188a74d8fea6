"""The experts of a mixture: for each token the gated feed-forward layers of its experts, weighted and summed."""
