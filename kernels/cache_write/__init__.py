"""Writing the keys and values of new tokens into their slots of the paged cache."""
