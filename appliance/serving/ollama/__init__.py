"""Ollama's API over the served model."""
