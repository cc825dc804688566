"""x W^T with W in codes, in torch: blocks of rows are expanded, used and dropped.

The product is that of the expanded weight, block by block, so nothing larger than a block is ever
held. The gradient goes to x; codes are not trained.
"""

from collections.abc import Callable
from typing import Any

import torch

from interlace.errors import ShapeError
from interlace.ops.linear.codes import BLOCK, Packed
from interlace.shapes import Float, Tensor

__all__ = ["Unpack", "packed_linear"]

Unpack = Callable[[Packed, torch.dtype], Tensor]


def packed_linear(
    x: Float[Tensor, "*rows D"], packed: Packed, unpack: Unpack
) -> Float[Tensor, "*rows F"]:
    """X W^T in the dtype of `x`, with a gradient for `x`.

    Args:
        x: rows.
        packed: W [F, D] in codes.
        unpack: expands rows of it to a dtype.

    Raises:
        ShapeError: rows that are not as wide as W.
    """
    if x.shape[-1] != packed.width:
        raise ShapeError(
            f"x must be [..., {packed.width}] for this packed weight, got {list(x.shape)}; pass "
            "rows as wide as the weight's input."
        )
    flat: Tensor = _Linear.apply(  # type: ignore[no-untyped-call]
        x.reshape(-1, x.shape[-1]), *packed, unpack
    )
    return flat.view(*x.shape[:-1], packed.codes.shape[0])


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, codes: Tensor, scale: Tensor, unpack: Unpack) -> Tensor:
        ctx.save_for_backward(codes, scale)
        ctx.unpack = unpack
        out = x.new_empty(x.shape[0], codes.shape[0])
        for a, b in _blocks(codes):
            out[:, a:b] = x @ unpack(Packed(codes[a:b], scale[a:b]), x.dtype).T
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        codes, scale = ctx.saved_tensors
        (dy,) = grads
        # summed over blocks, so wider than the dtype of the products
        wide = torch.promote_types(dy.dtype, torch.float32)
        dx = dy.new_zeros(dy.shape[0], Packed(codes, scale).width, dtype=wide)
        for a, b in _blocks(codes):
            dx += dy[:, a:b] @ ctx.unpack(Packed(codes[a:b], scale[a:b]), dy.dtype)
        return dx.to(dy.dtype), None, None, None


def _blocks(codes: Tensor) -> list[tuple[int, int]]:
    step = max(1, BLOCK // max(1, 2 * codes.shape[1]))
    return [(a, min(a + step, codes.shape[0])) for a in range(0, codes.shape[0], step)]
