"""From the projections of q, k and v to attention: heads normalised, turned, and stored in the paged cache."""
