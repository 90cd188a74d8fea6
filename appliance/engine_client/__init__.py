"""The native engine as the front door has it: its core as a process, the channel to it, the client whose requests and
tokens pass through that, and its launch."""
