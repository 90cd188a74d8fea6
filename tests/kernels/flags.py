"""Kernels in the forms that no family needs yet: they are tested, and not part of a cast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kernels import context

FLAGS = ("soft_cap", "rotary_interleaved", "latent_attention")


@contextmanager
def every_form() -> Iterator[None]:
    """Meanwhile ops declare all forms of their kernels, and have cases for them."""
    before = context.FLAGS_IN_USE
    context.FLAGS_IN_USE = frozenset(FLAGS)  # type: ignore[misc]
    try:
        yield
    finally:
        context.FLAGS_IN_USE = before  # type: ignore[misc]
