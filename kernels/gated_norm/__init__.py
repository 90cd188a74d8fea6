"""The norm after a gated delta layer: RMS norm of each head, times SiLU of its gate."""
