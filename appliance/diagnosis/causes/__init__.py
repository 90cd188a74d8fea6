"""Known causes as data, one file a family."""
