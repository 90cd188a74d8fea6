"""Attention over a paged cache, for prefill, decode and batches that mix them."""

# How many tokens' keys and values the torch backend copies out of their pages at a time when sequences decode. The
# memory plan counts on it.
GATHERED_TOKENS = 32_768
