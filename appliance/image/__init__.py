"""Needed only to build an image: which packages go into it, and the inventory of its contents. Ingot's wheel does not
contain this folder."""
