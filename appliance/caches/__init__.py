"""`ingot cache`: packs of what vLLM compiled, made after a good launch and carried to other machines."""
