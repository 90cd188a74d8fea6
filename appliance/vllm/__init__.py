"""All that is vLLM's: which one is installed and what its source says, what it takes of memory, its command line from a
profile, its log into phases, its launch, and the requests that are passed on to it."""
