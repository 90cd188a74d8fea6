"""From the projections of latent attention (MLA) to its cache: one latent a token, normalised and turned."""
