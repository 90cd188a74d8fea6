"""The short convolution before a gated delta layer: each channel over its own last few inputs, then SiLU."""
