"""x W^T with W in MXFP4: blocks of rows are expanded, used and dropped.

The product is that of the expanded weight, block by block, so nothing larger than a block is ever
held. The gradient goes to x; packed weights are not trained.
"""

from typing import Any

import torch

from interlace.errors import ShapeError
from interlace.ops.mxfp4.codes import check_packed, unpack
from interlace.shapes import Float, Tensor, UInt8

__all__ = ["BLOCK", "mxfp4_linear"]

BLOCK = 1 << 20
"""Elements that are expanded at a time: small enough to stay in a cache on their way."""


def mxfp4_linear(
    x: Float[Tensor, "*rows width"],
    packed: UInt8[Tensor, "out bytes"],
    scale: UInt8[Tensor, "out groups"],
) -> Float[Tensor, "*rows out"]:
    """X W^T in the dtype of `x`, with a gradient for `x`.

    Args:
        x: rows.
        packed: uint8 codes of W [out, width].
        scale: uint8 scales of W.

    Raises:
        ShapeError: shapes or dtypes that do not belong together.
    """
    check_packed(packed, scale)
    if x.shape[-1] != 2 * packed.shape[1]:
        raise ShapeError(
            f"x must be [..., {2 * packed.shape[1]}] for this packed weight, got {list(x.shape)}; "
            "pass rows as wide as the weight's input."
        )
    flat: Tensor = _Linear.apply(  # type: ignore[no-untyped-call]
        x.reshape(-1, x.shape[-1]), packed, scale
    )
    return flat.view(*x.shape[:-1], packed.shape[0])


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(packed, scale)
        out = x.new_empty(x.shape[0], packed.shape[0])
        for a, b in _blocks(packed):
            out[:, a:b] = x @ unpack(packed[a:b], scale[a:b], x.dtype).T
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        packed, scale = ctx.saved_tensors
        (dy,) = grads
        # summed over blocks, so wider than the dtype of the products
        wide = torch.promote_types(dy.dtype, torch.float32)
        dx = dy.new_zeros(dy.shape[0], 2 * packed.shape[1], dtype=wide)
        for a, b in _blocks(packed):
            dx += dy[:, a:b] @ unpack(packed[a:b], scale[a:b], dy.dtype)
        return dx.to(dy.dtype), None, None


def _blocks(packed: Tensor) -> list[tuple[int, int]]:
    step = max(1, BLOCK // (2 * packed.shape[1]))
    return [(a, min(a + step, packed.shape[0])) for a in range(0, packed.shape[0], step)]
