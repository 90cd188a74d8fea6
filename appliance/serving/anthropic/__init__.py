"""Anthropic's Messages API over the served model."""
