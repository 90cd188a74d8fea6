"""The queries of an indexer whose keys a compressor makes."""
