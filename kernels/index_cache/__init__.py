"""From the projections of an indexer to its cache: one key a token, normalised, turned, and rounded to 8 bits."""
