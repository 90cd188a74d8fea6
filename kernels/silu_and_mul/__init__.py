"""The gated activation of a dense feed-forward layer: silu(gate) * up."""
