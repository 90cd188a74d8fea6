"""Matrix product with the transposed weight, and an optional bias."""
