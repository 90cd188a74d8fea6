"""Drafts in a batch, for layers that carry a state from token to token. A draft decodes as a sequence of its own; a
known token and the drafts behind it, which follow it in the batch, are a chain.

No state is taken back. That behind the known token is written, since nobody rejects it; those behind drafts are not.
What a state takes of each draft is kept instead, at its position modulo the places that there are for it, which is
little beside a state. The chain that comes next first replays what was kept of the drafts that were accepted.
"""


def places(num_drafts: int) -> int:
    """For what is kept of drafts: those of one chain, and of the next, which replays them."""
    return 2 * num_drafts + 1
