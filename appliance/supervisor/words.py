"""Why a launch was stopped, in a sentence."""

from __future__ import annotations


def counted(requests: int) -> str:
    return "1 request was" if requests == 1 else f"{requests:,} requests were"


def why_stopped(why: str, cut: str, requests: int) -> str:
    """`Restarted by admin; 1 request was ended.`, without the part that does not apply."""
    told = "; ".join(filter(None, (why, cut if requests else "")))
    return f"{told}." if told else ""
