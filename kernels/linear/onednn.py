"""Linear by oneDNN, with weights in its own blocked layout.

torch's own product uses weights as they are: in bfloat16 oneDNN then rearranges the weight in every call, and in
float32 the product goes to a library optimised for one vendor's processors.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.gated_activation.reference import gated_activation
from kernels.linear import reference

# The overload itself, which saves the lookup in every call.
_product = torch.ops.mkldnn._linear_pointwise.default if torch.backends.mkldnn.is_available() else None


def supports(dtype: torch.dtype) -> bool:
    """Whether torch rearranges weights of `dtype` on this processor. Selection asks the processor's flags; torch also
    knows what oneDNN was built for, and what ONEDNN_MAX_CPU_ISA leaves of it."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype is torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype is torch.float32


def prepare(weight: Tensor) -> Tensor:
    """A copy of `weight` [O, I] in the layout oneDNN chooses on this processor; `weight` itself if it has none."""
    if not supports(weight.dtype):
        return weight
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
    return packed


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str = "",
    limit: float | None = None,
    activate: Callable[..., Tensor] = gated_activation,
    out: Tensor | None = None,
) -> Tensor:
    """As `reference.linear`; `weight` may have gone through `prepare`."""
    if weight.layout is torch.strided:
        return reference.linear(x, weight, bias, activation, limit, activate, out)
    assert _product is not None
    product: Tensor = _product(x, weight, bias, "none", [], "")
    if out is not None:
        return out.copy_(product)
    return activate(product, activation, limit) if activation else product
