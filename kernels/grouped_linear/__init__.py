"""A block-diagonal product: groups of the input, each by a matrix of its own."""
