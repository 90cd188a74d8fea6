"""Sampling from Qwen3's vocabulary: one row and many, of each kind; sharp logits as a model's, and ones much alike."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch

from kernels.sampling import reference, triton
from kernels.sampling.batch import Row as Wish
from kernels.sampling.batch import pack
from tests.gpu.bench.row import Row

VOCABULARY = 151936
WISHES = {
    "greedy": Wish(),
    "temperature": Wish(0.7),
    "top-k 20, top-p 0.95": Wish(0.6, top_k=20, top_p=0.95),
    "top-p 0.9": Wish(0.6, top_p=0.9),
    "min-p 0.05": Wish(1.0, min_p=0.05),
}


def rows(device: torch.device) -> Iterator[Row]:
    for count in (1, 256):
        for name, wish in WISHES.items():
            yield _row(device, count, name, wish, scale=4.0)
    for count in (1, 256):
        yield _row(device, count, "top-p 0.9, alike", WISHES["top-p 0.9"], scale=0.5)


def _row(device: torch.device, count: int, name: str, wish: Wish, scale: float) -> Row:
    logits = torch.randn(count, VOCABULARY, device=device) * scale
    batch = pack([wish._replace(uniform=(index + 0.5) / count) for index in range(count)], device)
    run = {"triton": functools.partial(triton.sample, logits, batch)}
    if count == 1 or not batch.samples:  # torch takes the rows one by one
        run["torch"] = functools.partial(reference.sample, logits, batch)
    return Row("sampling", f"{count} x {VOCABULARY} {name}", run, bytes=logits.nbytes)
