"""Compressed entries of DeepSeek-V4: one of every so many tokens, made as soon as the last of these is there
(DeepSeek-AI, 2026, "DeepSeek-V4"). CSA's overlap: each takes in the tokens of the one before as well; HCA's do not."""
