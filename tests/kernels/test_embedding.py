"""Embedding: Triton, interpreted, against plain torch."""

from __future__ import annotations

import pytest
import torch

from kernels.cases import error
from kernels.embedding import reference, triton
from kernels.embedding.cases import cases

CPU = torch.device("cpu")


@pytest.mark.parametrize("case", list(cases(90)), ids=lambda case: case.name)
def test_triton_agrees_with_the_reference(case):
    for result, expected in zip(case.run(triton.embedding, CPU), case.run(reference.embedding, CPU), strict=True):
        assert error(result, expected) <= case.tolerance
