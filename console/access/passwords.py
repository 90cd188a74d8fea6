"""Passwords: argon2id, hashed in a thread since it is meant to take long."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

SHORTEST = 10
LONGEST = 256

_hasher = PasswordHasher()
_threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="argon2")
"""Each hash takes 64 MiB and a core: a flood of sign-ins waits in line instead of filling the memory."""
_ABSENT = "$argon2id$v=19$m=65536,t=3,p=4$c2FsdHNhbHRzYWx0c2FsdA$S1dNPOmAkLMVHDqeaTrhmEKkq3a7Hws3T2hMdTcl3Ug"
"""Used when the account is unknown, so that response times do not reveal which accounts exist."""


async def hash_password(password: str) -> str:
    return await asyncio.get_running_loop().run_in_executor(_threads, _hasher.hash, password)


async def is_password(stored: str | None, password: str) -> bool:
    right = await asyncio.get_running_loop().run_in_executor(_threads, _verify, stored or _ABSENT, password)
    return right and stored is not None


def complaint(password: str) -> str:
    """What is wrong with a new password; empty when nothing is."""
    if len(password) < SHORTEST:
        return f"The password has {len(password):,} characters. Use at least {SHORTEST:,}."
    if len(password) > LONGEST:
        return f"The password has {len(password):,} characters. Use at most {LONGEST:,}."
    return ""


def _verify(stored: str, password: str) -> bool:
    try:
        return _hasher.verify(stored, password)
    except (VerificationError, InvalidHashError):
        return False
