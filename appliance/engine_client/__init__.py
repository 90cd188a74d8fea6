"""How the front door speaks to a core: the channel, and the client whose requests and tokens pass through it."""
