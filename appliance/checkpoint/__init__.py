"""A model folder on disk: config, safetensors headers, tokenizer, digest, memory plan."""
