"""What a launch will be: the effective values of a profile, its backends, its memory, and the plan made of them."""
