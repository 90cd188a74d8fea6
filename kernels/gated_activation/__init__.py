"""The gated activation of a feed-forward layer: act(gate) * up, with an optional clamp."""

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
