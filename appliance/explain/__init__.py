"""Which backend each op gets on a GPU that is here, or is not, and why not the others: `ingot explain`."""
