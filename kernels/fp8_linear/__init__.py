"""Matrix product with a weight in block-scaled FP8, the format of DeepSeek V3 and of Qwen's FP8 checkpoints."""

GROUP = 128  # neighbouring values of an activation that share a scale; also the edge of a weight's block
