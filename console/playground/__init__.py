"""A chat with the model that runs, through the console's own way to the front door."""
