"""Products of few rows in the native core: each weight is read once, as it lies.

`csrc/kernels/linear.cpp`. The order of every sum is fixed by the width alone, so a row's result
depends neither on its neighbours nor on the number of threads, to the bit. Products are exact, sums
float32; a result is rounded once.
"""

from collections.abc import Sequence
from math import prod

import torch

from interlace.errors import ShapeError
from interlace.ops.linear.codes import Packed
from interlace.ops.native import core, reason
from interlace.shapes import Float, Tensor

__all__ = ["Weight", "linear_native", "refusal"]

Weight = Tensor | Packed
_MOST = 8  # weights of one call


def refusal(x: Tensor, weights: Sequence[Weight]) -> str | None:
    """Why the native core cannot multiply these, or None."""
    if x.dtype != torch.bfloat16:
        return f"it takes bfloat16 rows, got {str(x.dtype).removeprefix('torch.')}"
    if len(weights) > _MOST:
        return f"it takes at most {_MOST} weights at once, got {len(weights)}"
    tensors = [x]
    for weight in weights:
        if isinstance(weight, Packed):
            tensors += weight
        elif weight.dtype != torch.bfloat16:
            return f"it takes bfloat16 weights, got {str(weight.dtype).removeprefix('torch.')}"
        else:
            tensors.append(weight)
    for tensor in tensors[1:]:
        if tensor.stride(-1) != 1:
            return "the last axis of a weight must be contiguous"
    return reason(*tensors)


def linear_native(
    x: Float[Tensor, "*rows D"],
    weights: Sequence[Weight],
    *,
    glu: str = "",
    beta: float = 0.0,
    linear_beta: float = 0.0,
) -> list[Float[Tensor, "*rows _"]]:
    """X W^T for each weight, in bfloat16.

    Args:
        x: bfloat16 rows.
        weights: at most eight, bfloat16 [F, D] or codes.
        glu: "swish" or "situ": `weights` are gate and up, and the result is one.
        beta: cap of the gate branch of situ; 0 for none.
        linear_beta: cap of the up branch of situ; 0 for none.

    Raises:
        ShapeError: a weight that is not as wide as `x`.
    """
    rows = x.detach()
    if rows.ndim != 2:
        rows = rows.reshape(prod(x.shape[:-1]), x.shape[-1])
    if rows.stride(-1) != 1:
        rows = rows.contiguous()
    plain: list[object] = []
    outs: list[Tensor] = []
    for weight in weights:
        codes = weight.codes if isinstance(weight, Packed) else weight
        wide = weight.width if isinstance(weight, Packed) else weight.shape[1]
        if wide != x.shape[-1]:
            raise ShapeError(
                f"x must be [..., {wide}] for this weight, got {list(x.shape)}; pass rows as wide "
                "as the weight's input."
            )
        if not glu or not outs:
            outs.append(x.new_empty(rows.shape[0], codes.shape[0]))
        # under no_grad a parameter may still ask for gradients, which the core does not take
        plain.append(weight if isinstance(weight, Packed) else weight.detach())
    core().linear(rows, plain, outs, glu, beta, linear_beta)
    return [out.view(*x.shape[:-1], out.shape[1]) for out in outs]
