"""`ingot explain`: which backend each op gets on any known GPU, present or not, and why not the others."""
