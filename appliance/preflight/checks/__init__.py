"""One file a check; every check returns findings."""
