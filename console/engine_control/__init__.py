"""The only places that start, stop or read an engine: as a child process, or as a container."""
