"""Drafts: tokens that are likely to come next, guessed cheaply and computed together with the last known one. What the
model samples behind each says how many of them it would have written itself. Plain data: no torch."""
