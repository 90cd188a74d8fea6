"""Attention over a paged cache, for prefill, decode and batches that mix them."""
